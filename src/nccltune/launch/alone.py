"""One question to a worker group that is opened for it alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccltune.launch.protocol import Launcher, Limits, Outcome, Progress


def ask_alone(
    launcher: Launcher,
    process_env: Mapping[str, str],
    log_dir: Path,
    message: Mapping[str, Any],
    progress: Progress = lambda _message: None,
    *,
    probe: bool = False,
    placed: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Outcome:
    """Open a group, ask it, close it. Raises Interrupted."""
    group = launcher.open(process_env, log_dir, probe=probe, placed=placed)
    try:
        return group.request(message, limits or Limits(), progress)
    finally:
        group.close()


def ask_twice_if_lost(
    launcher: Launcher,
    process_env: Mapping[str, str],
    log_dir: Path,
    message: Mapping[str, Any],
    progress: Progress = lambda _message: None,
    **given: Any,
) -> Outcome:
    """The same, once more where it was the host that died and not the ranks' fault."""
    outcome = ask_alone(launcher, process_env, log_dir, message, progress, **given)
    if outcome.host_lost:
        outcome = ask_alone(launcher, process_env, log_dir, message, progress, **given)
    return outcome
