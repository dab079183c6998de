"""The first launch of a verb that measures: what the ranks talk over, and what a script does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccltune.cli.speaking import say
from nccltune.cli.starting import nothing_begun
from nccltune.launch.protocol import Launcher
from nccltune.output.script import script_lines
from nccltune.study.probing import probe_machine, probe_script
from nccltune.study.script_survey import LookFailed, plain_because
from nccltune.study.survey import Survey


def first_launch(
    found: Survey, launcher: Launcher, plain: Launcher, log_dir: Path, cache: Path
) -> dict[str, Any] | None:
    """What NCCL's log said and, where the job is a script, what was seen of it; None with gloo.

    Raises: StudyError where ranks fail, Interrupted.
    """
    with nothing_begun("in the first launch"):
        if found.task.script is not None:
            return _of_script(found, launcher, plain, log_dir)
        if found.task.workload.backend != "nccl":
            return None
        say("probe launch: asking NCCL what the ranks talk over")
        probe = probe_machine(found, launcher, log_dir, cache)
    _tell_nccl(probe)
    return probe


def _tell_nccl(probe: Mapping[str, Any]) -> None:
    if not probe.get("version"):
        say("NCCL wrote no log: the script does not seem to use it")
        return
    network = f", network {probe['network']}" if probe["network"] else ", no network between ranks"
    if " and " in (probe["network"] or ""):
        say(
            f"warning: ranks talk over several networks, {probe['network']}: the slowest sets the "
            "pace, and no parameter of either is searched; see that every node has its network up"
        )
    plugins = "".join(f", {kind} plugin {name}" for kind, name in probe.get("plugins", {}).items())
    transport = "+".join(probe["transport"]) or "none"
    say(f"NCCL {probe['version']}: transport {transport}{network}{plugins}")


def _of_script(found: Survey, launcher: Launcher, plain: Launcher, log_dir: Path) -> dict[str, Any]:
    assert found.task.script is not None
    name = found.task.script.command.name
    say(f"first launch: {name} as it is, for some steps")
    try:
        probe = probe_script(found, launcher, log_dir)
    except LookFailed as error:
        if launcher is plain or error.kind != "crashed" or found.options.launcher == "warm":
            raise
        # It may not bear that torch is there before it begins.
        probe = probe_script(found, plain, log_dir)
        probe["script"]["plain_because"] = "it fails where torch is imported before it begins"
    for line in script_lines(name, probe["script"]):
        say(line)
    if found.task.workload.backend == "nccl":
        _tell_nccl(probe)
    return probe


def suited(
    found: Survey, launcher: Launcher, plain: Launcher, probe: Mapping[str, Any] | None
) -> Launcher:
    """The launcher that bears this script: `launcher`, or `plain` alone, which is told."""
    if found.task.script is None or probe is None or not (why := plain_because(probe)):
        return launcher
    if launcher is not plain:
        say(f"every launch is a plain torchrun command, which costs more time: {why}")
    launcher.close()
    return plain
