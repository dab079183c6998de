"""best.yaml: written, read back, and refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import nccltune
from nccltune.errors import UsageError
from nccltune.output.best import Best, read_best, read_variables

BEST = Best(
    env={"NCCL_ALGO": "ring,tree;allreduce:tree", "NCCL_BUFFSIZE": "8388608", "ODD": "on: 'x'\n#"},
    ddp={"bucket_cap_mb": 50, "gradient_as_bucket_view": True},
    loader={"num_workers": 4, "prefetch_factor": None, "pin_memory": True},
    batch_size=128,
    workload={"model": "resnet50", "precision": "tf32"},
    verdict=None,
    machine={"gpus": ["NVIDIA H200"], "driver": "570.1"},
    provenance={"study": "größer", "trial": 3, "search_value": 1234.5},
)


def written(folder: Path, text: str) -> Path:
    file = folder / "best.yaml"
    file.write_text(text)
    return file


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = written(tmp_path, BEST.to_yaml())
    best = nccltune.load(file)
    assert best == BEST
    assert nccltune.load(str(file)) == BEST
    assert best.ddp_kwargs == {"bucket_cap_mb": 50, "gradient_as_bucket_view": True}
    assert best.loader_kwargs == {"num_workers": 4, "prefetch_factor": None, "pin_memory": True}


def test_a_verdict_is_kept(tmp_path: Path) -> None:
    document = {**yaml.safe_load(BEST.to_yaml()), "verdict": {"name": "FASTER", "ratio": 1.04}}
    file = written(tmp_path, yaml.safe_dump(document))
    assert read_best(file).verdict == {"name": "FASTER", "ratio": 1.04}


def test_arguments_are_the_callers_own(tmp_path: Path) -> None:
    best = read_best(written(tmp_path, BEST.to_yaml()))
    best.ddp_kwargs["bucket_cap_mb"] = 1
    best.loader_kwargs.clear()
    assert best.ddp_kwargs["bucket_cap_mb"] == 50
    assert best.loader_kwargs["num_workers"] == 4


def test_variables_are_texts_for_every_reader_of_yaml() -> None:
    document = yaml.safe_load(BEST.to_yaml())
    assert document["version"] == 1
    assert document["env"]["NCCL_BUFFSIZE"] == "8388608"  # not a number
    assert list(document) == [
        "version", "ddp", "loader", "batch_size", "env", "workload", "verdict", "machine",
        "provenance",
    ]  # fmt: skip


def changed(**changes: Any) -> str:
    document = {**yaml.safe_load(BEST.to_yaml()), **changes}
    return yaml.safe_dump({k: v for k, v in document.items() if v != "missing"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a best.yaml of version 1"),
        ("[]", "not a best.yaml of version 1"),
        ("just text", "not a best.yaml of version 1"),
        (changed(version=2), "not a best.yaml of version 1"),
        (changed(version="missing"), "not a best.yaml of version 1"),
        (changed(ddp="missing"), "ddp: must be a mapping, got NoneType"),
        (changed(env=["A=1"]), "env: must be a mapping, got list"),
        (changed(loader=3), "loader: must be a mapping, got int"),
        (changed(provenance=None), "provenance: must be a mapping, got NoneType"),
        (changed(batch_size="missing"), "batch_size: must be a whole number >= 1, got None"),
        (changed(batch_size=0), "batch_size: must be a whole number >= 1, got 0"),
        (changed(batch_size=True), "batch_size: must be a whole number >= 1, got True"),
        (changed(batch_size="64"), "batch_size: must be a whole number >= 1, got '64'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, reason: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        nccltune.load(file)
    assert str(caught.value) == f"{file}: {reason}"


# A file from elsewhere is data.


def complaint(file: Path) -> str:
    with pytest.raises(UsageError) as caught:
        nccltune.load(file)
    text = str(caught.value)
    assert text.startswith(f"{file}: ") and "\n" not in text
    return text.removeprefix(f"{file}: ")


def test_text_that_is_not_yaml(tmp_path: Path) -> None:
    file = written(tmp_path, "ddp: {a: 1\n  b: [")
    assert complaint(file).startswith("line 2, column 4: not valid YAML: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary, large = tmp_path / "binary.yaml", tmp_path / "large.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_text("#" * (1 << 20) + "\n")
    assert complaint(tmp_path / "missing.yaml") == "no such file"
    assert complaint(tmp_path) == "must be a file, got something else"
    assert complaint(binary) == "must be UTF-8 text, byte 0 is not"
    assert complaint(large) == "must not exceed 1 MiB"


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch made']", "!!python/name:os.system", "!x 1"]
)
def test_yaml_is_data_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, f"{BEST.to_yaml()}more: {tag}\n")
    assert "unknown tag" in complaint(file)
    assert not (tmp_path / "made").exists()


def test_a_name_that_stands_twice(tmp_path: Path) -> None:
    text = BEST.to_yaml().replace("env:\n", "env:\n  NCCL_ALGO: Tree\n")
    line = text[: text.index("  NCCL_ALGO: ring")].count("\n") + 1
    assert complaint(written(tmp_path, text)) == (
        f"line {line}: duplicate key NCCL_ALGO, first on line {line - 1}"
    )


def test_aliases_that_stand_for_too_much(tmp_path: Path) -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    bomb = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *rows])
    assert "aliases stand for" in complaint(written(tmp_path, f"{BEST.to_yaml()}{bomb}\n"))


ACCEPTED = {
    "NCCL_ALGO": "ring,tree;allreduce:tree",
    "NCCL_NET_PLUGIN": "aws-ofi",
    "NCCL_TUNER_PLUGIN": "none",
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler-x.so,other",
    "NCCL_TOPO_FILE": "/etc/topo.xml",
    "NCCL_IB_ADDR_RANGE": "10.0.0.0/8",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1",
    "NCCL_PROTO": "$(touch x)",  # a text: no shell sees it
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "FI_PROVIDER": "efa",
    "OFI_NCCL_NIC_DUP_CONNS": "2",
    "OMP_NUM_THREADS": "4",
    "OMP_PLACES": "{0:4}:8:4",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_file_may_set(name: str) -> None:
    assert read_variables("b.yaml", replace(BEST, env={name: ACCEPTED[name]})) == {
        name: ACCEPTED[name]
    }


NONE_OF_THEM = "is none of the variables that settings may hold (NCCL_*, TORCH_NCCL_*, "
A_PATH = "has a path for its value, which may be loaded or written to"
REFUSED = [
    *((name, "x", NONE_OF_THEM) for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "BASH_ENV")),
    *((name, "x", NONE_OF_THEM) for name in ("PYTHONSTARTUP", "PYTHONHOME", "HOME", "MY_VAR")),
    ("PYTHON_EXEC", "/tmp/x", NONE_OF_THEM),
    ("CUDA_CACHE_PATH", "/tmp/x", NONE_OF_THEM),
    ("UCX_TLS", "tcp", NONE_OF_THEM),
    ("nccl_algo", "Ring", NONE_OF_THEM),
    ("NCCL_A\x1b[31m", "1", "is no name of a variable"),
    *(
        (f"NCCL_{kind}_PLUGIN", value, "would load a library by its path")
        for kind in ("NET", "TUNER", "PROFILER", "GIN", "RMA")
        for value in ("/tmp/evil.so", "./evil.so", "none,/tmp/evil.so", "a b")
    ),
    ("NCCL_IBVERBS_LIB", "/tmp/evil.so", "would load a library by its path"),
    ("NCCL_ENV_PLUGIN", "x", "names a library that sets other variables"),
    ("NCCL_CONF_FILE", "x", "names another file of settings"),
    ("FI_PROVIDER_PATH", "x", "names a folder whose libraries are loaded"),
    ("OMP_TOOL_LIBRARIES", "x.so", "names libraries to be loaded"),
    ("NCCL_TOPO_DUMP_FILE", "x", "names a file to be written"),
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "x", "names a file to be written"),
    ("NCCL_TUNER_CONFIG_FILE", "/tmp/x", A_PATH),
    ("FI_UCX_CONFIG", "../x", A_PATH),
    *(
        ("NCCL_ALGO", f"Ring{c}x", "has a line break or another control character in its value")
        for c in "\n\t\x1b\x7f\x85\u202e\u2028"
    ),
]


@pytest.mark.parametrize(("name", "value", "reason"), REFUSED)
def test_what_no_file_may_set(tmp_path: Path, name: str, value: str, reason: str) -> None:
    file = written(tmp_path, replace(BEST, env={"NCCL_PROTO": "LL", name: value}).to_yaml())
    with pytest.raises(UsageError) as caught:
        read_variables(file, read_best(file))
    text = str(caught.value)
    assert text.startswith(f"{file}: env.{name if name.isprintable() else ''}")
    assert reason in text and text.isprintable()
    assert text.endswith(
        "; take it out of the file, and export it in the job yourself if it is to be set"
    )


@pytest.mark.parametrize("name", ["RANK", "PYTHONPATH", "NCCL_DEBUG_FILE", "NCCLTUNE_APPLY"])
def test_what_every_launch_sets(name: str) -> None:
    with pytest.raises(UsageError, match=f"b.yaml: env.{name}: is set by every launch; take it"):
        read_variables("b.yaml", replace(BEST, env={name: "1"}))


def test_a_result_is_shown_in_a_line() -> None:
    best = replace(BEST, env={"NCCL_ALGO": "Ring"}, ddp={"a": True}, loader={}, batch_size=64)
    assert (
        repr(best) == "Best(env={'NCCL_ALGO': 'Ring'}, ddp={'a': True}, loader={}, batch_size=64)"
    )


def test_a_study_stands_for_its_best_yaml(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("version: 1\nspace: {}\n")
    with pytest.raises(UsageError, match="has no best.yaml yet"):
        nccltune.load(tmp_path)
    (tmp_path / "best.yaml").write_text(BEST.to_yaml())
    assert nccltune.load(tmp_path) == BEST == nccltune.load(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        nccltune.load(tmp_path / "study.yaml")
    assert str(caught.value).endswith(
        "study.yaml: that is a study's definition; its result is best.yaml beside it"
    )


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"verdict": "FASTER"}, "verdict: must be null"),
        ({"verdict": {"word": "FASTER", "ratio": "x"}}, "verdict.ratio: must be a number"),
        ({"workload": {"placed": ["x"]}}, "workload.placed: must be a mapping"),
        ({"fingerprint": []}, "fingerprint: must be a mapping"),
    ],
)
def test_parts_that_are_not_of_our_form(tmp_path: Path, part: dict[str, Any], told: str) -> None:
    empty: dict[str, Any] = {n: {} for n in ("ddp", "loader", "env", "workload", "machine")}
    whole = {"version": 1, **empty, "batch_size": 1, "verdict": None, "provenance": {}}
    file = tmp_path / "best.yaml"
    file.write_text(yaml.safe_dump({**whole, **part}))
    with pytest.raises(UsageError, match=told):
        read_best(file)
