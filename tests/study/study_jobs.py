"""Machines, spaces and a launcher without ranks that the tests of studies share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from packaging.version import Version

from nccltune.launch.protocol import Failure, Limits, Outcome, Progress
from nccltune.launch.stopping import StopFlag
from nccltune.machine.facts import Machine
from nccltune.nccl.site import SiteVariable
from nccltune.space import Facts, ResolvedSpace, Selection, Space, resolve
from nccltune.study.batch_sizes import Memory, stage_parameters
from nccltune.study.blocks import Launch
from nccltune.study.budget import Budget
from nccltune.study.definition import Definition, Task
from nccltune.study.effects import Silences
from nccltune.study.folder import StudyPaths, locked
from nccltune.study.measuring import Measurer
from nccltune.study.planner import Planner
from nccltune.study.proposals import Proposal, Proposer
from nccltune.study.records import Measurement, Stage, Trial
from nccltune.study.sampling.choosing import Choice
from nccltune.study.search import Search
from nccltune.study.store import Store
from nccltune.worker.spec import Settings, Workload

NCCL = Version("2.28.9")
FACTS = Facts(
    backend="nccl",
    world_size=2,
    probed=True,
    transports=("P2P",),
    nccl=NCCL,
    cpus_per_rank=8,
    batch_size=64,
    num_workers=2,
)
GLOO = Facts(backend="gloo", world_size=2, probed=True, cpus_per_rank=2, batch_size=8)

MACHINE = Machine(
    cpu="Some CPU",
    cores=16,
    memory_bytes=64 << 30,
    gpus=("NVIDIA H200", "NVIDIA H200"),
    gpu_memory_bytes=(141 << 30, 141 << 30),
    nvlinks=(18, 18),
    driver="570.1",
    torch="2.9.0",
    cuda="12.8",
    nccl="2.27.5",
)

WORKLOAD = Workload(
    model="resnet50",
    data="images",
    folder="/somewhere/images",
    image_size=224,
    precision="tf32",
    channels_last=False,
    cudnn_benchmark=True,
    device="cuda",
    backend="nccl",
    seed=0,
)
SYNTHETIC = replace(WORKLOAD, data="synthetic")
TASK = Task(workload=WORKLOAD, nproc_per_node=2, batch_size=64, num_workers=2, python=None)
WITHOUT_LOADER = replace(TASK, workload=SYNTHETIC)

BUCKETS = (1 << 20, 25 << 20)
ENV = {"target": "env", "default": None}
DDP = {"target": "ddp", "default": None}
PARAMETERS: dict[str, Any] = {
    "NCCL_ALGO": {**ENV, "choices": [None, "Ring", "Tree"]},
    "NCCL_BUFFSIZE": {**ENV, "choices": [None, 1048576, 8388608]},
    "NCCL_MIN_CTAS": {**ENV, "choices": [None, 4, 16, 32]},
    "NCCL_MAX_CTAS": {**ENV, "choices": [None, 4, 16, 32]},
    "bucket_cap_mb": {**DDP, "choices": [None, 10, 50, 100]},
    "batch_size": {"target": "batch", "choices": [32, 64, 128, 256, 512], "default": None},
    "num_workers": {"target": "loader", "range": {"low": 0, "high": 8}, "default": None},
}
PRESETS: list[dict[str, Any]] = [
    {"name": "buckets", "source": "a/b#1", "values": {"bucket_cap_mb": 100}},
    {"name": "ring", "source": "a/b#2", "values": {"NCCL_ALGO": "Ring"}},
]


def space_of(
    parameters: Mapping[str, Any] = PARAMETERS,
    facts: Facts = FACTS,
    *,
    presets: Any = (),
    constraints: Any = None,
    **selection: Any,
) -> ResolvedSpace:
    document = {"version": 1, "parameters": dict(parameters), "presets": list(presets)}
    if constraints is not None:
        document["constraints"] = constraints
    return resolve(Space.model_validate(document), facts, Selection(**selection), "a.yaml")


def result(value: float, *, cut: bool = False) -> dict[str, Any]:
    """What ranks report, with windows of one second."""
    window = {
        "steps": 10,
        "rank_seconds": [0.9, 1.0],
        "data_wait": 0.1,
        "response": 0.05,
        "warmup": False,
        "counts": True,
        "early": False,
    }
    return {
        "samples_per_second": value,
        "step_seconds": 0.1,
        "data_wait_share": 0.1,
        "steps": 20,
        "windows": [window, window],
        "steady": True,
        "queue_trend": 0.0,
        "cut": cut,
        "collectives_checked": 12,
        "parameters": 25_557_032,
        "bucket_bytes": list(BUCKETS),
        "peak_memory_bytes": [3 << 30, 3 << 30],
        "reserved_memory_bytes": [4 << 30, 4 << 30],
        "loss": 6.9,
        "seconds": {"build": 2.0, "first_step": 3.0, "check": 1.0, "warmup": 2.0, "measure": 2.0},
    }


def measurement(number: int, value: float | None = 100.0, **changes: Any) -> Measurement:
    """A record as the search makes one; without a value it failed for want of memory."""
    failure = {
        "kind": "out_of_memory",
        "message": "CUDA out of memory",
        "rank": 1,
        "log": f"logs/launch-{number:04d}/rank1.log",
        "tail": ["Traceback", "torch.OutOfMemoryError: CUDA out of memory"],
    }
    whole = Measurement(
        launcher="formula",
        id=f"m{number:04d}",
        launch=number,
        purpose="search",
        trial=number,
        stage="search",
        origin="sampler" if number else "baseline",
        configuration={},
        effective={"env": {}, "ddp": {}, "loader": {"num_workers": 2}, "batch_size": 64},
        state="failed" if value is None else "complete",
        value=value,
        result=None if value is None else result(value),
        failure=failure if value is None else None,
        nccl=None,
        utilization=(90.0, 80.0),
        seconds={"start": 8.0, "build": 2.0, "measure": 2.0, "close": 0.5},
    )
    return replace(whole, **changes)


def definition(space: ResolvedSpace, **changes: Any) -> Definition:
    whole = Definition(
        task=TASK,
        space=space,
        machine=MACHINE,
        sampler="tpe",
        seed=0,
        command=("nccltune", "search", "--trials", "12"),
        probe={"version": "2.28.9", "transport": ["P2P"], "network": None},
        site={"NCCL_SOCKET_IFNAME": "eth0"},
    )
    return replace(whole, **changes)


@dataclass(frozen=True)
class Asked:
    """What a worker group was asked to measure."""

    env: Mapping[str, str]
    ddp: Mapping[str, Any]
    loader: Mapping[str, Any]
    batch_size: int
    message: Mapping[str, Any]
    limits: Limits
    group: FormulaGroup


Speed = Callable[[Asked], "float | Failure"]
"""Samples/s of what is asked, or its failure. It may raise, as when the user interrupts."""


@dataclass
class FormulaGroup:
    """Ends with its first failure, as a group of ranks does; whoever opened it still closes it."""

    launcher: FormulaLauncher
    env: Mapping[str, str]
    log_dir: Path
    alive: bool = True
    closed: bool = False
    waiting: tuple[Mapping[str, Any], Limits, Progress] | None = None
    turns: int = 0
    probe: bool = False

    def begin(
        self, message: Mapping[str, Any], limits: Limits, progress: Progress
    ) -> Outcome | None:
        if not message["turns"]:
            return self.request(message, limits, progress)
        self.waiting = message, limits, progress
        return None

    def turn(self) -> Outcome | None:
        """Two turns; what is asked is answered in the last."""
        assert self.waiting is not None and not self.closed
        self.turns += 1
        self.launcher.turns.append(self)
        return None if self.turns < 2 else self.request(*self.waiting)

    def request(self, message: Mapping[str, Any], limits: Limits, progress: Progress) -> Outcome:
        assert self.alive, "asked after its end"
        env = {**self.env, **message["communicator_env"]}
        env |= {f"config.{k}": str(v) for k, v in message["communicator_config"].items()}
        asked = Asked(
            env, message["ddp"], message["loader"], message["batch_size"], message, limits, self
        )
        self.launcher.asked.append(asked)
        self.alive = False  # also where what follows raises
        progress({"type": "phase", "phase": "measure"})
        answer = self.launcher.speed(asked)
        if isinstance(answer, Failure):
            lost = self.launcher.hosts_lost > 0
            self.launcher.hosts_lost -= lost
            return Outcome(None, answer, self.launcher.seconds, host_lost=lost)
        self.alive = True
        self._log(env)
        cut = (message["settings"]["cut_below"] or 0) * 0.5 > answer
        found = {**result(answer, cut=cut), "held_memory_bytes": self.launcher.held(asked)}
        found |= self.launcher.extra(asked)
        return Outcome(found, None, self.launcher.seconds, (90.0, 80.0))

    def _log(self, env: Mapping[str, str]) -> None:
        """As NCCL does, in a file of the launch."""
        if self.launcher.reads is None:
            return
        self.log_dir.mkdir(parents=True, exist_ok=True)
        with (self.log_dir / "nccl.1.log").open("a") as log:
            log.write("host:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
            log.write("host:1:1 [0] NCCL INFO 24 coll channels, 0 nvls channels\n")
            for name in self.launcher.reads & env.keys():
                log.write(f"host:1:1 [0] NCCL INFO {name} set by environment to {env[name]}\n")
            algorithm = "TREE" if "tree" in env.get("NCCL_ALGO", "").split(":")[-1] else "RING"
            for size in BUCKETS if self.probe else ():
                how = f"Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..23}}"
                log.write(f"host:1:1 [0] NCCL INFO AllReduce: {size} Bytes -> {how}\n")

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.alive, self.closed = False, True


@dataclass
class FormulaLauncher:
    """Worker groups whose speed is a formula: no processes, the same contract."""

    name = "formula"
    speed: Speed
    seconds: Mapping[str, float] = field(default_factory=lambda: {"start": 1.0, "measure": 2.0})
    asked: list[Asked] = field(default_factory=list)
    groups: list[FormulaGroup] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    held: Callable[[Asked], list[int]] = lambda _: [1 << 30, 1 << 30]
    """Bytes in use by rank after a measurement."""
    hosts_lost: int = 0
    """So many failures are the launcher's own."""
    turns: list[FormulaGroup] = field(default_factory=list)
    """Whose turn it was."""
    extra: Callable[[Asked], dict[str, Any]] = lambda _: {}
    """What ranks report beside."""
    reads: frozenset[str] | None = None
    """The variables that NCCL comes to read; None: there is no log of NCCL."""

    def close(self) -> None:
        assert self.all_closed

    def open(
        self, process_env: Mapping[str, str], log_dir: Path, *, probe: bool = False, **_: object
    ) -> FormulaGroup:
        waiting = [group for group in self.groups if not group.closed]
        assert len(waiting) < 2 and all(group.waiting for group in waiting), "they share the GPUs"
        self.groups.append(FormulaGroup(self, process_env, log_dir, probe=probe))
        return self.groups[-1]

    @property
    def opened(self) -> int:
        return len(self.groups)

    @property
    def all_closed(self) -> bool:
        return all(group.closed for group in self.groups)

    @property
    def asked_by_group(self) -> list[int]:
        """How often each group was asked to measure."""
        return [sum(asked.group is group for asked in self.asked) for group in self.groups]


@dataclass
class Listener:
    """A reporter that remembers."""

    begun: list[int] = field(default_factory=list)
    ended: list[Trial] = field(default_factory=list)
    failures: list[Failure | None] = field(default_factory=list)
    logs: list[Path | None] = field(default_factory=list)
    messages: int = 0
    noises: list[list[float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def trial_begins(self, number: int) -> None:
        self.begun.append(number)

    def progress(self, message: Mapping[str, Any]) -> None:
        self.messages += 1

    def noise(self, speeds: Sequence[float], wanted: int) -> None:
        self.noises.append(list(speeds))

    def no_confirmation(self, seconds: float) -> None:
        self.refused.append(seconds)

    def launch_ends(self, launch: Launch, measurement: Measurement) -> None:
        self.launches.append(launch)

    def trial_ends(self, trial: Trial, failure: Failure | None, log: Path | None) -> None:
        self.ended.append(trial)
        self.failures.append(failure)
        self.logs.append(log)

    def note(self, text: str) -> None:
        self.notes.append(text)


UNLIMITED = Memory(None, lambda _trial: None)


def planner_of(
    paths: StudyPaths,
    space: ResolvedSpace,
    trials: list[Trial],
    seed: int = 0,
    memory: Memory = UNLIMITED,
    silences: Silences | None = None,
    sampler: str = "tpe",
) -> Planner:
    made = Choice(sampler, space, seed)
    proposer = Proposer(paths.journal, stage_parameters(space), trials, made)
    return Planner(space, proposer, TASK.batch_size, memory, silences)


def search_in(
    paths: StudyPaths,
    launcher: FormulaLauncher,
    space: ResolvedSpace,
    trials: int,
    *,
    seconds: float | None = None,
    listener: Listener | None = None,
    stop: StopFlag | None = None,
    seed: int = 0,
    planner: Planner | None = None,
    site: Mapping[str, SiteVariable] | None = None,
    task: Task = TASK,
) -> Search:
    """A search on what the folder holds, as the command makes one. Hold the lock meanwhile."""
    store = Store(paths)
    measurer = Measurer(
        store=store,
        launcher=launcher,
        task=task,
        space=space,
        nccl=NCCL,
        config_fields=frozenset({"min_ctas", "max_ctas"}),
        settings=Settings(),
        site=site or {},
    )
    return Search(
        store=store,
        planner=planner
        or planner_of(
            *(paths, space, store.trials, seed, Memory(None, store.peak_memory)),
            Silences(store.measurements, space),
        ),
        measurer=measurer,
        budget=Budget(trials, seconds),
        reporter=listener or Listener(),
        stop=stop or StopFlag(),
    )


def run_study(
    folder: Path, speed: Speed, space: ResolvedSpace, trials: int, seed: int = 0,
    launcher: FormulaLauncher | None = None,
) -> StudyPaths:  # fmt: skip
    """A whole recorded study in `folder`."""
    paths = StudyPaths(folder)
    with locked(paths):
        definition(space, seed=seed).write(paths)
        search_in(paths, launcher or FormulaLauncher(speed), space, trials, seed=seed).run()
    return paths


@dataclass
class Script:
    """A sampler that proposes what it is told to, then only what is known; notes what became of it.

    `asked` has how many trials were on record when a proposal was made, `told` the trial that it
    became; both by its place among the proposals.
    """

    proposals: list[Mapping[str, Any]]
    baseline: Mapping[str, Any] = field(default_factory=dict)
    asks: int = 0
    trials: int = 0
    asked: list[int] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    rejected: list[tuple[Mapping[str, Any], float | None]] = field(default_factory=list)
    withdrawn: list[Mapping[str, Any]] = field(default_factory=list)

    def ask(self, stage: Stage) -> Proposal:
        place = self.asks
        self.asks += 1
        self.asked.append(self.trials)
        values = self.proposals[place] if place < len(self.proposals) else self.baseline
        return Proposal(stage, values, cast("Any", place))

    def guided(self, stage: Stage) -> None:
        """None of ours: what the planner does for samplers without an opinion."""

    origin = staticmethod(Proposer.origin)

    def close(self) -> None: ...

    def reject(self, proposal: Proposal, value: float | None) -> None:
        self.rejected.append((proposal.values, value))

    def withdraw(self, proposal: Proposal) -> None:
        self.withdrawn.append(proposal.values)

    def tell(self, trial: Trial, proposal: Proposal | None = None) -> None:
        self.trials = trial.number + 1
        if proposal is not None:
            self.told[cast("int", proposal.trial)] = trial.number

    def planner(self, space: ResolvedSpace, memory: Memory = UNLIMITED) -> Planner:
        return Planner(space, cast("Any", self), TASK.batch_size, memory)


def favours_buckets(asked: Asked) -> float:
    """100 samples/s; +20 with buckets of 50 MiB, +10 with Ring, and more with larger batches."""
    speed = 100.0
    speed += 20 if asked.ddp.get("bucket_cap_mb") == 50 else 0
    speed += 10 if "ring" in asked.env.get("NCCL_ALGO", "") else 0
    return speed * (asked.batch_size / 64) ** 0.5
