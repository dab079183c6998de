"""Run by test_exports_jobs.py: what accelerate, Lightning and transformers make of exports.

The files of a folder are read, and a JSON object by their names is printed. One process reads all
that need a package, since it takes seconds to be imported.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any


def accelerate(file: Path) -> dict[str, Any]:
    """The file by accelerate's own loader and launcher; the code in its comments is run."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    words = ["--config_file", str(file), "train.py"]
    given, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    lines = [line[2:] for line in file.read_text().split("\n") if line.startswith("# ")]
    code = [line for line in lines if line.startswith(("from accelerate", "ddp = "))]
    names: dict[str, Any] = {}
    exec("\n".join(code), names)
    return {
        "config": load_config_from_file(str(file)).to_dict(),
        "launch": [given.multi_gpu, given.num_processes, given.use_cpu],
        "ddp": names["ddp"].to_kwargs() if "ddp" in names else {},
    }


def lightning(file: Path) -> dict[str, Any]:
    from lightning.pytorch.strategies import DDPStrategy

    names: dict[str, Any] = {}
    exec(compile(file.read_bytes(), str(file), "exec"), names)
    assert type(names["strategy"]) is DDPStrategy
    return {
        "ddp": names["strategy"]._ddp_kwargs,
        "env": {name: os.environ.pop(name, None) for name in names["env"]},
        "loader": names["loader_kwargs"],
    }


def trainer(file: Path) -> dict[str, Any]:
    from transformers import HfArgumentParser, TrainingArguments

    lines = [line for line in file.read_text().split("\n") if not line.startswith("#")]
    words = [*shlex.split(" ".join(lines)), "--output_dir", str(file.parent), "--use_cpu"]
    (found,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    usual = TrainingArguments(output_dir=str(file.parent), use_cpu=True).to_dict()
    return {n: v for n, v in found.to_dict().items() if v != usual[n]}


_READERS = {".accelerate": accelerate, ".lightning": lightning, ".hf-trainer": trainer}

folder = Path(sys.argv[1])
read = {
    file.name: _READERS[file.suffix](file) for file in folder.iterdir() if file.suffix in _READERS
}
print(json.dumps(read))
