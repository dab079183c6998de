# `make search` and `make test` are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.PHONY: search setup test test-all lint types format clean help

help:                ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

search: $(STAMP)     ## the main job on this machine: GPUs with NCCL, else two CPU ranks (options: ARGS='--trials 20')
	$(BIN)/nccltune search $(ARGS)

setup: $(STAMP)      ## install into .venv

# A torch that the system's python already has is kept: the venv is built on it and pip is held to that version.
$(STAMP): pyproject.toml
	@if [ ! -x $(BIN)/python ]; then \
	  if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	    echo "setup: using the torch that $(PYTHON) has"; $(PYTHON) -m venv --system-site-packages $(VENV); \
	  else \
	    echo "setup: installing torch and the rest into $(VENV): minutes, several GB"; $(PYTHON) -m venv $(VENV); \
	  fi; \
	fi
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >$(VENV)/constraints.txt 2>/dev/null || : >$(VENV)/constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $(STAMP)

lint: $(STAMP)       ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)      ## mypy --strict
	$(BIN)/mypy

# What starts no ranks runs in two processes; ranks want both cores for themselves.
test: lint types     ## lint, types, tests (real torchrun ranks on CPU among them)
	$(BIN)/python -m pytest -q -n 2 -m 'not slow and not gpu and not ranks and not serial'
	$(BIN)/python -m pytest -q -m 'not slow and not gpu and (ranks or serial)'

test-all: lint types ## the long tests too; those marked gpu run where GPUs are
	$(BIN)/python -m pytest -q

format: $(STAMP)     ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:               ## remove the venv and caches (studies are kept)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
