"""A copy of the files that git tracks, for scripts that write where they run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from nccltune.errors import UsageError


def copy_tracked(folder: Path) -> tuple[Path, Path]:
    """Copy the repository's tracked files, as they are now, to `folder`. Returns it, and the folder
    in it that is like the current one.

    Raises: UsageError outside a repository, or where files cannot be copied.
    """
    here = Path.cwd()
    top = Path(_git(here, "rev-parse", "--show-toplevel").rstrip("\n"))
    names = [n for n in _git(top, "ls-files", "-z", "--recurse-submodules").split("\0") if n]
    try:
        for name in names:
            source, target = top / name, folder / name
            if not source.exists() and not source.is_symlink():  # deleted, not committed yet
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        inside = folder / here.resolve().relative_to(top.resolve())
        inside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--workdir scratch: {folder}: {error.strerror or error}") from error
    return folder, inside


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except OSError as error:
        raise UsageError(f"--workdir scratch: needs git: {error.strerror}") from error
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise UsageError(f"--workdir scratch: needs a git repository here: {reason[:200]}")
    return done.stdout.decode(errors="surrogateescape")
