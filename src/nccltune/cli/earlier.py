"""What an earlier search has found good is tried first, and that is told."""

from __future__ import annotations

from collections.abc import Sequence

from nccltune.cli.speaking import say
from nccltune.errors import UsageError
from nccltune.space import ResolvedSpace
from nccltune.study.folder import StudyPaths
from nccltune.study.generations import current, read_history
from nccltune.study.planner import Earlier
from nccltune.study.summary import Summary
from nccltune.study.warm_start import earlier_points


def tried_first(old: Summary, where: str, space: ResolvedSpace) -> Sequence[Earlier]:
    """The best of an old search, which is called `where`, as far as it applies in `space`."""
    points, dropped = earlier_points(old, where, space)
    for line in dropped:
        say(f"not tried again: {line}")
    if points:
        say(f"tried first: {', '.join(each.origin for each in points)}")
    return points


def from_machine_before(paths: StudyPaths, space: ResolvedSpace) -> Sequence[Earlier]:
    """The best of the study that was set aside for this one (--accept-machine), where one was."""
    if not paths.before.exists():
        return ()
    old = StudyPaths(paths.folder.with_name(paths.before.read_text(encoding="utf-8").strip()))
    try:
        summary = Summary.read(old.generation(current(read_history(old))))
    except UsageError as error:
        say(f"note: nothing of {old.name} is tried first: {error}")
        return ()
    return tried_first(summary, old.name, space)
