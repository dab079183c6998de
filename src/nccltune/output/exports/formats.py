"""The table of formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nccltune.errors import UsageError
from nccltune.output.exports import code, command_lines, documents, variables
from nccltune.output.exports.result import Exported, Result, one_line

FORMATS: Mapping[str, Callable[[Result], Exported]] = MappingProxyType(
    {
        "env": variables.env,
        "docker": variables.docker,
        "nccl-conf": variables.nccl_conf,
        "slurm": variables.slurm,
        "k8s": documents.k8s,
        "json": code.as_json,
        "python": code.python,
        "torchrun": command_lines.torchrun,
        "accelerate": documents.accelerate,
        "lightning": code.lightning,
        "hf-trainer": command_lines.hf_trainer,
    }
)


def export(result: Result, format: str) -> Exported:
    """The result in a format of the table.

    Raises: UsageError for a value that this format cannot hold bit for bit.
    """
    for name, value in result.env.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{result.file}: env.{name}: holds what is no text") from None
    made = FORMATS[format](result)
    return Exported(made.text, tuple(dict.fromkeys(one_line(note) for note in made.notes)))
