"""What a job gets from best.env and best.yaml: files are written, sourced and loaded for real."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nccltune.errors import StudyError
from nccltune.launch.leftovers import temporary_folder
from nccltune.output.best import Best, read_best
from nccltune.output.env_file import env_file
from nccltune.study.effective import Effective

_OF_THE_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}
_SECONDS = 60.0


def through_files(given: Effective) -> Effective:
    """What ranks are given when they are started with the files of these settings.

    Raises: StudyError when the files cannot be written, or a shell cannot source one.
    """
    try:
        with temporary_folder() as folder:
            env, best = folder / "best.env", folder / "best.yaml"
            env.write_text(env_file(given.env, []))
            best.write_text(_best(given).to_yaml())
            loaded, variables = read_best(best), sourced(env)
    except OSError as error:  # a full disk, say
        raise StudyError(f"the files could not be tried: {error}") from error
    return Effective(
        process_env=variables,
        communicator_env={},
        communicator_config={},
        ddp=loaded.ddp_kwargs,
        loader=loaded.loader_kwargs,
        batch_size=loaded.batch_size,
        env=variables,
        placed=given.placed,  # the user types it
    )


def sourced(file: Path) -> dict[str, str]:
    """The variables that a shell has after `. file`. Raises StudyError."""
    command = ["sh", "-c", 'set -a; . "$1"; set +a; exec env -0', "sh", str(file.absolute())]
    try:
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StudyError(f"{file.name} cannot be sourced: {error}") from error
    pairs = (text.partition("=") for text in done.stdout.decode().split("\0") if text)
    ours = {name: value for name, _, value in pairs if name not in _OF_THE_SHELL}
    ours.pop("PATH", None)
    return ours


def _best(given: Effective) -> Best:
    return Best(
        env=given.env,
        ddp=given.ddp,
        loader=given.loader,
        batch_size=given.batch_size,
        workload={},
        verdict=None,
        machine={},
        provenance={},
    )
