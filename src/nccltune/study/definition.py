"""What a study is about: written once as study.yaml, compared when it is resumed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import yaml

from nccltune.errors import UsageError
from nccltune.machine.facts import Machine
from nccltune.space import ResolvedSpace, Value
from nccltune.study.fingerprinting import DIGEST
from nccltune.study.folder import StudyPaths, read_definition, write_text
from nccltune.study.script_task import ScriptTask
from nccltune.worker.spec import Workload


@dataclass(frozen=True)
class Task:
    """The user's job: what is timed, on how many ranks, from which settings on."""

    workload: Workload
    nproc_per_node: int
    batch_size: int
    num_workers: int
    python: str | None
    """As given with --python; None is nccltune's own."""
    emulate_hosts: int | None = None
    script: ScriptTask | None = None
    """The user's own training script; None where the job is ours."""
    nodes: int = 1
    """Machines with `nproc_per_node` ranks each."""

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.nproc_per_node

    def to_dict(self) -> dict[str, Any]:
        if self.script is not None:
            return self._script_dict(self.script)
        workload = asdict(self.workload)
        if workload["data"] == "images":
            workload["folder"] = None  # in a cache, wherever that is
        emulated = {"emulate_hosts": self.emulate_hosts} if self.emulate_hosts else {}
        return {
            **workload,
            **emulated,
            **({"nodes": self.nodes} if self.nodes > 1 else {}),
            "nproc_per_node": self.nproc_per_node,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "python": self.python,
        }

    def placed_texts(self, configuration: Mapping[str, Value]) -> dict[str, str]:
        """What stands in the script's command for the names in braces: of the configuration, else
        what holds in the baseline.
        """
        assert self.script is not None
        own = {"batch_size": self.batch_size, "num_workers": self.num_workers}
        return self.script.texts({**own, **configuration})

    def _script_dict(self, script: ScriptTask) -> dict[str, Any]:
        """What the script sets itself is not the study's to say."""
        own = {"batch_size": self.batch_size, "num_workers": self.num_workers}
        placed: dict[str, Any] = {n: value for n, value in own.items() if n in script.placed}
        return {
            "model": self.workload.model,
            "data": self.workload.data,
            "device": self.workload.device,
            "backend": self.workload.backend,
            "seed": self.workload.seed,
            **script.to_dict(),
            **({"emulate_hosts": self.emulate_hosts} if self.emulate_hosts else {}),
            "nproc_per_node": self.nproc_per_node,
            **placed,
            "python": self.python,
        }


@dataclass(frozen=True)
class Definition:
    """Everything a study is compared by on resuming, and how it was asked for."""

    task: Task
    space: ResolvedSpace
    machine: Machine
    sampler: str
    seed: int
    command: tuple[str, ...]
    probe: Mapping[str, Any] | None
    site: Mapping[str, str]
    """The site's variables: they hold in every launch, so other ones make another study."""
    created: str = ""
    unpinned: tuple[str, ...] = ()
    """Variables of the site that no launch has."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """What results depend on; told by `verify`, no part of what a study is compared by."""
    nodes: Sequence[Mapping[str, Any]] = ()
    """What each node is, where ranks are on several."""
    host: str = ""
    """A digest of where it was begun; told when it goes on elsewhere, and not compared."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "created": self.created,
            "command": shlex.join(self.command),
            "workload": self.task.to_dict(),
            "sampler": self.sampler,
            "seed": self.seed,
            "machine": self.machine.to_dict(),
            **({"host": self.host} if self.host else {}),
            **({"nodes": [dict(node) for node in self.nodes]} if self.nodes else {}),
            "site": dict(self.site),
            **({"unpinned": sorted(self.unpinned)} if self.unpinned else {}),
            "probe": None if self.probe is None else dict(self.probe),
            **({"fingerprint": dict(self.fingerprint)} if self.fingerprint else {}),
            "space": self.space.to_dict(),
        }

    def write(self, paths: StudyPaths) -> Definition:
        """Begin the study: study.yaml is there from now on."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        complete = replace(self, created=now)
        text = yaml.safe_dump(complete.to_dict(), sort_keys=False, width=100)
        write_text(paths.definition, text)
        return complete


class OtherStudy(UsageError):
    """What is asked for is not what the study is about."""


def refuse_changes(paths: StudyPaths, wanted: Definition) -> dict[str, Any]:
    """The stored definition, when the wanted one means the same study.

    Raises: UsageError listing every difference that would make old and new trials incomparable.
    """
    stored = read_definition(paths)
    found = list(differences(stored, wanted))
    if not found:
        return stored
    machine = any(line.startswith("machine.") for line in found) and wanted.task.nodes == 1
    hint = (
        f"the machine is not the one that was measured: `nccltune retune {paths.name}` searches a "
        "new generation beside the old one; --new starts a study anew"
        if machine
        else "repeat the first command to resume, give --new to start anew (the old folder is "
        "renamed and kept), or another --study name"
    )
    listed = "\n".join(f"  {line}" for line in found)
    raise OtherStudy(f"{paths.folder}: this is another study:\n{listed}\n{hint}")


def differences(stored: Mapping[str, Any], wanted: Definition) -> Iterator[str]:
    new = wanted.to_dict()
    yield from _compare("workload", stored["workload"], new["workload"])
    for name in ("sampler", "seed"):
        if stored[name] != new[name]:
            yield f"{name}: {stored[name]} in the study, {new[name]} asked for"
    yield from _compare("site", stored["site"], new["site"])
    before, now = stored.get("unpinned", []), sorted(wanted.unpinned)
    if before != now:
        yield f"--unpin: {before or 'nothing'} in the study, {now or 'nothing'} now"
    old_machine = Machine.from_dict(stored["machine"]).comparable()
    yield from _compare("machine", old_machine, wanted.machine.comparable())
    yield from _nodes_differ(stored.get("nodes") or [], wanted.nodes)
    old_space = ResolvedSpace.from_dict(stored["space"])
    if old_space.digest() != wanted.space.digest():
        yield from _space_differences(old_space, wanted.space)


def _compare(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        if _plain(old.get(name)) != _plain(new.get(name)):
            yield f"{where}.{name}: {old.get(name)} in the study, {new.get(name)} now"


def _nodes_differ(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """One node may stand in for another that is the same; how many they are is the workload's."""
    left = [node[DIGEST] for node in old]
    for node in new if len(old) == len(new) else ():
        if node[DIGEST] in left:
            left.remove(node[DIGEST])
        else:
            others = " or ".join(left)
            yield f"machine.node {node['node']}: {others} in the study, {node[DIGEST]} now"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _space_differences(old: ResolvedSpace, new: ResolvedSpace) -> Iterator[str]:
    before, after = _searched(old), _searched(new)
    found = False
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            found = True
            was, now = before.get(name, "not searched"), after.get(name, "not searched")
            yield f"space.{name}: {was} in the study, {now} now"
    if not found:
        yield "space: constraints, presets or baseline values differ"


def _searched(space: ResolvedSpace) -> dict[str, str]:
    searched = {p.name: p.allowed() for p in space.parameters}
    return searched | {name: f"fixed to {value}" for name, value in space.fixed.items()}


def default_name(model: str, backend: str, nproc_per_node: int, nodes: int = 1) -> str:
    """MODEL-BACKEND-xN, or -xNODESxN, with what a folder name cannot hold replaced."""
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in model.removesuffix(".py"))
    several = f"x{nodes}" if nodes > 1 else ""
    return f"{plain.lstrip('._-') or 'model'}-{backend}-{several}x{nproc_per_node}"


def going_on(command: Sequence[str]) -> str:
    """The command that goes on with a study, as it would be typed: without --new, which would begin
    another.
    """
    end = command.index("--") if "--" in command else len(command)  # then a script's own words
    return shlex.join([w for i, w in enumerate(command) if i >= end or w != "--new"])
