"""From a configuration to what ranks are given: spelled variables, DDP and loader arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import Version

from nccltune.nccl import catalog, values
from nccltune.space import ResolvedSpace, Value, changes, split
from nccltune.study.definition import Task
from nccltune.study.script_task import ScriptTask
from nccltune.worker.spec import Request, Settings


@dataclass(frozen=True)
class Effective:
    """`process_env` needs a new worker group; what is of a communicator is set in live ranks."""

    process_env: Mapping[str, str]
    communicator_env: Mapping[str, str]
    communicator_config: Mapping[str, int]
    ddp: Mapping[str, Value]
    loader: Mapping[str, Value]
    batch_size: int
    env: Mapping[str, str] = field(default_factory=dict)
    """All variables as a job's environment would hold them."""
    placed: Mapping[str, str] = field(default_factory=dict)
    """What the command of a script is given for the names in braces."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "env": dict(self.env),
            "ddp": dict(self.ddp),
            "loader": dict(self.loader),
            "batch_size": self.batch_size,
            **({"placed": dict(self.placed)} if self.placed else {}),
        }


def request_for(
    given: Effective, task: Task, settings: Settings, *, id: str, data_seed: int = 0
) -> Request:
    """What ranks are asked for this."""
    return Request(
        id=id,
        workload=task.workload,
        settings=settings,
        ddp=dict(given.ddp),
        loader=dict(given.loader),
        batch_size=given.batch_size,
        data_seed=data_seed,
        communicator_env=dict(given.communicator_env),
        communicator_config=dict(given.communicator_config),
    )


def effective(
    configuration: Mapping[str, Value],
    resolved: ResolvedSpace,
    *,
    nccl: Version | None,
    config_fields: frozenset[str],
    task: Task,
    site: Collection[str] = (),
) -> Effective:
    """`config_fields` are those of the communicator's configuration that the job's torch knows;
    a limit that it does not know there goes through the environment of a new group instead.
    """
    parts = split(configuration, resolved)
    script = task.script
    # A variable of the site can only be held at the value that it has there anyway.
    ours = [name for name in parts.env if name not in site]
    env = {name: values.spell(name, configuration[name], nccl) for name in ours}
    process_env: dict[str, str] = {}
    communicator_env: dict[str, str] = {}
    communicator_config: dict[str, int] = {}
    for name, text in env.items():
        config = catalog.config_field(name)
        if script is not None or catalog.scope_of(name) != "communicator":
            process_env[name] = text
        elif config is None:
            communicator_env[name] = text
        elif config in config_fields and text.isdigit():
            communicator_config[config] = int(text)
        else:
            process_env[name] = text
    if "min_ctas" in communicator_config and "max_ctas" not in communicator_config:
        # A minimum without a maximum is refused as a field ("Invalid config min/max channels",
        # NCCL 2.28), though not as a variable.
        process_env["NCCL_MIN_CTAS"] = env["NCCL_MIN_CTAS"]
        del communicator_config["min_ctas"]
    given = Effective(
        process_env=process_env,
        communicator_env=communicator_env,
        communicator_config=communicator_config,
        ddp=parts.ddp,
        loader=loader_arguments(parts.loader, task),
        batch_size=parts.batch_size or task.batch_size,
        env=env,
    )
    return given if script is None else _for_script(given, configuration, resolved, task, script)


def _for_script(
    given: Effective,
    configuration: Mapping[str, Value],
    resolved: ResolvedSpace,
    task: Task,
    script: ScriptTask,
) -> Effective:
    """Only what differs from the script's own, by its arguments where it has a place for it."""
    ours = {**changes(configuration, resolved.baseline), **resolved.fixed}
    parts = split({n: v for n, v in ours.items() if n not in script.placed}, resolved)
    loader = {n: v for n, v in parts.loader.items() if v is not None}
    return replace(given, ddp=parts.ddp, loader=loader, placed=task.placed_texts(configuration))


def loads_beside(given: Effective) -> bool:
    """Whether loader workers load on while the ranks wait: a group whose queue fills up during
    another one's turn is timed too fast, and takes the cores of that other one.
    """
    return int(given.loader.get("num_workers") or 0) > 0


def loader_arguments(searched: Mapping[str, Value], task: Task) -> dict[str, Value]:
    """DataLoader arguments: what is searched, else the user's own, and two that follow a rule.
    Pinned memory pays where batches are copied to a GPU; persistent workers wherever there are any.
    """
    if task.workload.data == "synthetic":
        return {}
    workers = int(searched.get("num_workers", task.num_workers) or 0)
    arguments: dict[str, Value] = {
        "num_workers": workers,
        "pin_memory": task.workload.device == "cuda",
        "persistent_workers": workers > 0,
    }
    prefetch = searched.get("prefetch_factor")
    if workers and prefetch is not None:
        arguments["prefetch_factor"] = prefetch
    return arguments
