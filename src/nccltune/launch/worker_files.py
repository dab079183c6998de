"""The worker's files, alone, on a path of their own: what the job's Python imports.

Putting our site-packages on its PYTHONPATH would shadow the packages of the job.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import nccltune
from nccltune.errors import StudyError

# What `import nccltune` offers to scripts, where the job's Python does not have it.
_FOR_SCRIPTS = (
    *("__init__.py", "errors.py", "applying.py", "safe_yaml.py"),
    *("output/__init__.py", "output/best.py", "output/writers.py"),
    *("nccl/__init__.py", "nccl/accepted.py", "nccl/findings.py", "nccl/integers.py"),
    *("nccl/site.py", "nccl/to_set.py"),
)


def place_worker(folder: Path) -> Path:
    """Copy `nccltune.worker`, and what scripts may import, to `folder/nccltune` and return
    `folder`, to be put on PYTHONPATH. What was measured stays beside its records.
    """
    shutil.rmtree(folder / "nccltune", ignore_errors=True)
    try:
        for name, content in placed_files():
            file = folder / "nccltune" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    except OSError as error:
        raise StudyError(f"{folder}: cannot copy files there: {error.strerror or error}") from error
    return folder


def placed_files() -> Iterator[tuple[str, bytes]]:
    """What is copied: the path inside the package, and the content; always in the same order."""
    package = Path(nccltune.__file__).parent
    for name in _FOR_SCRIPTS:
        yield name, (package / name).read_bytes()
    for file in sorted((package / "worker").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file.relative_to(package).as_posix(), file.read_bytes()
