"""The worker's files, alone, on a path of their own: what the job's Python imports.

Putting our site-packages on its PYTHONPATH would shadow the packages of the job.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nccltune
from nccltune.errors import StudyError


def place_worker(folder: Path) -> Path:
    """Copy `nccltune.worker` to `folder/nccltune/worker` and return `folder`, to be put on
    PYTHONPATH. What was measured stays beside its records.
    """
    package = folder / "nccltune"
    source = Path(nccltune.__file__).parent / "worker"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""The part of nccltune that runs in ranks."""\n')
    try:
        shutil.copytree(source, package / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    except shutil.Error as error:  # a list with every file
        reason = str(error.args[0][0][2]) if error.args and error.args[0] else str(error)
        raise StudyError(f"{folder}: cannot copy files there: {reason}") from error
    return folder
