"""The user's own script in real ranks: what is seen of it, what reaches it, how it ends."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nccltune.launch.plan import LaunchSettings
from nccltune.launch.protocol import Limits, Outcome
from nccltune.launch.script import ScriptLauncher, ScriptRun, read_script
from nccltune.launch.stopping import StopFlag
from nccltune.launch.warm import WarmLauncher
from nccltune.launch.worker_files import place_worker
from nccltune.study.script_task import ScriptTask
from nccltune.worker.spec import Settings
from running import MARK, marked
from workloads import quiet

pytestmark = pytest.mark.ranks

SCRIPTS = Path(__file__).parents[1] / "scripts"
SHORT = Settings(windows=2, window_seconds=0.05, warmup_window_seconds=0.05, max_warmup_windows=4)
LOOK = None


@dataclass
class Ran:
    """One run of a script in a worker group of its own."""

    outcome: Outcome
    logs: Path
    warnings: list[str]

    @property
    def result(self) -> dict[str, Any]:
        assert self.outcome.failure is None, self.outcome.failure
        return dict(self.outcome.result or {})

    @property
    def script(self) -> dict[str, Any]:
        found: dict[str, Any] = self.result["script"]
        return found

    @property
    def failure(self) -> Any:
        assert self.outcome.failure is not None, self.outcome.result
        return self.outcome.failure

    def printed(self, rank: int = 0) -> str:
        return (self.logs / f"rank{rank}.log").read_text()


class Runner:
    """Runs scripts by a warm host, which all of them share, or by plain torchrun commands."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self._folder, self._count = folder, 0
        self._settings = LaunchSettings(
            python=sys.executable,
            nproc_per_node=2,
            backend="gloo",
            worker_path=place_worker(folder / "worker"),
            base={**os.environ, "PYTHONPATH": str(SCRIPTS), MARK: self.mark},
            site={},
        )
        self._warm = WarmLauncher(self._settings, StopFlag())

    def __call__(
        self,
        *argv: str,
        settings: Settings | None = SHORT,
        ddp: dict[str, Any] | None = None,
        loader: dict[str, Any] | None = None,
        training: list[str] | None = None,
        plain: bool = False,
        **task: Any,
    ) -> Ran:
        if argv[0].endswith(".py") and "/" not in argv[0]:
            argv = (str(SCRIPTS / argv[0]), *argv[1:])
        command = read_script(argv, self._settings.base)
        launcher: Any = replace(self._warm, script=ScriptRun(command), warnings=[])
        if plain:
            launcher = ScriptLauncher(self._settings, StopFlag(), ScriptRun(command))
        self._count += 1
        logs = self._folder / f"launch-{self._count}"
        asked = ScriptTask(command, **task).request(ddp or {}, loader or {})
        asked["script"]["training"] = training
        message = {
            "type": "measure",
            "id": f"m{self._count:04d}",
            "settings": None if settings is None else asdict(settings),
            **asked,
        }
        group = launcher.open({}, logs)
        try:
            outcome = group.request(message, Limits(), quiet)
        finally:
            group.close()
        return Ran(outcome, logs, launcher.warnings)

    def close(self) -> None:
        self._warm.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("scripts"))
    yield runner
    runner.close()
    assert marked(runner.mark) == []


# Scripts that cannot be measured.

FAILING = {
    "crash_step3.py": r"ValueError: no step 3 for rank \d",
    "never_steps.py": r"ended with exit code 0 before its first optimizer step; steps of torch",
    "os_exit.py --exit-at 2": r"rank \d ended by itself with exit code 3",
    "needs_arguments.py": r"^needs_arguments.py ended with exit code 2 before its first step; its "
    r"last words: needs_arguments.py: error: the following arguments are required: --data$",
    "spawns_ranks.py": r"starts its own ranks with torch.multiprocessing.spawn",
    "short.py": r"ended with exit code 0 after 6 steps, before it was measured: let it train",
}


@pytest.mark.parametrize("command", FAILING)
def test_a_script_that_cannot_be_measured_says_why_and_names_its_log(
    run: Runner, command: str
) -> None:
    failure = run(*command.split(), settings=Settings(windows=3)).failure
    assert failure.kind == ("ended" if "exit code 0" in FAILING[command] else "crashed")
    assert "ScriptEnded" not in failure.message + " ".join(failure.tail)
    assert re.search(FAILING[command], failure.message), failure.message
    assert re.search(r"rank\d\.log$", failure.log) and Path(failure.log).exists()


def test_a_traceback_begins_with_the_users_own_code(run: Runner) -> None:
    ran = run("crash_step3.py")
    shown = re.findall(r'  File "(.+?)", line', ran.printed(ran.failure.rank))
    assert shown and {Path(file).name for file in shown} == {"crash_step3.py"}


def test_the_log_of_a_script_without_its_arguments_has_its_usage(run: Runner) -> None:
    assert "required: --data" in run("needs_arguments.py").failure.excerpt


# Scripts that do odd things and are measured all the same.


def test_what_stays_in_a_script_that_catches_its_end_is_ended_by_force(run: Runner) -> None:
    ran = run("traps_exit.py", "--steps", "1000000000")
    assert ran.result["samples_per_second"] > 0
    assert "goes on after TrialDone" in ran.printed()
    assert len(ran.warnings) == 1 and "did not end when it was told to" in ran.warnings[0]


def test_children_of_a_rank_are_no_ranks(run: Runner) -> None:
    ran = run("forks.py", "--batch-size", "8")
    assert ran.script["samples_per_step"] == [8.0, 8.0]
    assert len(ran.script["loaders"]) == 1 and ran.script["optimizers"] == [
        ran.script["loaders"][0]["batches"]
    ]


def test_the_busiest_optimizer_counts(run: Runner) -> None:
    seen = run("three_optimizers.py", settings=LOOK).script
    assert seen["optimizer"] == 0  # the critic's, which steps first
    assert seen["optimizers"][0] == pytest.approx(4 * seen["optimizers"][1], abs=4)
    every = run("three_optimizers.py", optimizer=2, settings=LOOK).script
    assert every["optimizer"] == 2 and every["samples_per_step"][0] == pytest.approx(16, rel=0.3)


def test_accumulated_gradients_are_one_step(run: Runner) -> None:
    seen = run("accumulates.py", "--batch-size", "8", settings=LOOK).script
    assert seen["accumulates"] is True
    assert seen["samples_per_step"] == [32.0, 32.0]


def test_validation_does_not_count(run: Runner) -> None:
    ran = run("validates.py", settings=replace(SHORT, windows=3))
    assert ran.script["training"] == ["1:TensorDataset"]
    assert {loader["place"].split(":")[0] for loader in ran.script["loaders"]} == {"validates.py"}
    windows = ran.result["windows"]
    assert any(w["interrupted"] for w in windows)
    assert all(w["samples"] == 32 * w["steps"] for w in windows)
    assert not any(w["interrupted"] and w["counts"] for w in windows)


def test_a_loader_in_another_process_is_not_the_ranks(run: Runner) -> None:
    seen = run("loader_in_subprocess.py").script
    assert len(seen["loaders"]) == 1 and seen["training"] == [seen["loaders"][0]["key"]]


def test_a_script_that_changes_directory_saves_below_the_trial(run: Runner, tmp_path: Path) -> None:
    ran = run("changes_directory.py", str(tmp_path))
    assert ran.result["samples_per_second"] > 0
    assert not list(tmp_path.rglob("*.pt"))


def test_checkpoints_of_a_trial_leave_the_users_alone(run: Runner, tmp_path: Path) -> None:
    mine = tmp_path / "model.pt"
    mine.write_bytes(b"mine")
    ran = run("checkpoints_every_step.py", "--out", str(mine))
    assert mine.read_bytes() == b"mine"
    assert ran.script["saves"] == 1
    assert not (ran.logs / "saves").exists()  # they can be large


def test_a_script_that_reads_stdin_finds_it_empty(run: Runner) -> None:
    assert "0 bytes" in run("reads_stdin.py").printed()


def test_a_batch_that_is_trained_on_again_and_again_is_counted_each_time(run: Runner) -> None:
    assert run("one_batch.py", settings=LOOK).script["samples_per_step"] == [16.0, 16.0]
    windows = run("one_batch.py").result["windows"]
    assert {w["samples"] / w["steps"] for w in windows if w["counts"]} == {32.0}


def test_to_the_script_a_warm_rank_is_the_main_process(run: Runner) -> None:
    printed = run("asks_who_it_is.py", settings=LOOK).printed()
    assert "I am MainProcess None" in printed
    assert re.search(r"started as \['-u', '.*asks_who_it_is.py'\]", printed)


@pytest.mark.slow
def test_where_one_rank_alone_steps_it_is_told_which(run: Runner) -> None:
    failure = run("rank0_steps.py", settings=LOOK).failure
    assert "rank 1 has taken no optimizer step" in failure.message


def test_what_the_script_sets_itself_stays(run: Runner) -> None:
    ran = run("hard_coded_loader.py", ddp={"bucket_cap_mb": 7, "static_graph": False})
    kept = ran.script["ddp_kept"]
    assert kept["gradient_as_bucket_view"] is True and kept["bucket_cap_mb"] != 7
    assert ran.script["ddp_passed"] == {"static_graph": False}
    assert ran.script["ddp_logging"]["bucket_cap_bytes"] == kept["bucket_cap_mb"] << 20


def test_an_argument_that_is_passed_is_in_ddps_own_log(run: Runner) -> None:
    ran = run("validates.py", ddp={"bucket_cap_mb": 7, "gradient_as_bucket_view": True})
    logged = ran.script["ddp_logging"]
    assert logged["bucket_cap_bytes"] == 7 << 20
    assert logged["gradient_as_bucket_view"] in (True, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_arguments_reach_the_training_loader_alone(run: Runner, workers: int) -> None:
    # The script's own: one worker, prefetch_factor 4, persistent.
    passed = {"num_workers": workers}
    ran = run("hard_coded_loader.py", loader=passed, training=["1:TensorDataset"])
    assert ran.script["loaders"][0]["passed"] == passed
    other = run("validates.py", loader={"num_workers": 1}, training=["1:TensorDataset"])
    assert [r["passed"] for r in other.script["loaders"]] == [{"num_workers": 1}, {}]


def test_a_loader_is_matched_by_where_it_is_made(run: Runner) -> None:
    first = run("validates.py", settings=LOOK).script["loaders"]
    ran = run("validates.py", loader={"num_workers": 1}, loader_match=first[1]["place"])
    assert [bool(r["passed"]) for r in ran.script["loaders"]] == [False, True]


def test_two_models_in_turn(run: Runner) -> None:
    seen = run("gan.py", settings=LOOK).script
    assert seen["ddp_modules"] == 2 and seen["optimizer"] == 0
    assert seen["samples_per_step"][0] == pytest.approx(16, rel=0.2)


def test_an_iterable_data_set(run: Runner) -> None:
    loader = run("iterable.py", settings=LOOK).script["loaders"][0]
    assert loader["iterable"] is True and loader["num_workers"] == 2


def test_without_ddp(run: Runner) -> None:
    ran = run("fsdp2.py")
    assert ran.result["collectives_checked"] > 0
    assert ran.script["ddp_modules"] == 0 and ran.script["fsdp"] is True
    assert ran.script["samples_per_step"] == [16.0, 16.0]


def test_a_script_that_counts_itself(run: Runner) -> None:
    seen = run("exact.py").script
    assert seen["told"] > 0 and seen["optimizers"] == []
    assert seen["samples_per_step"] == [16.0, 16.0]


@pytest.mark.parametrize("script", ["compiled.py", "amp.py"])
def test_compiled_and_mixed_precision(run: Runner, script: str) -> None:
    ran = run(script, ddp={"bucket_cap_mb": 9})
    assert ran.script["samples_per_step"] == [16.0, 16.0]
    assert ran.script["ddp_logging"]["bucket_cap_bytes"] == 9 << 20


def test_a_module_of_a_package(run: Runner) -> None:
    assert run("-m", "pkg_train.train").script["samples_per_step"] == [16.0, 16.0]


# Scripts that are written as many are, and not as a measurement would like them.

HEAD = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
data = TensorDataset(torch.randn(320, 8), torch.randint(4, (320,)))
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)
def step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
LOADER_PER_EPOCH = """
model = DDP(nn.Linear(8, 4))
optimizer = sgd(model)
while True:
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        step(model, optimizer, x, y)
    for x, y in DataLoader(data, batch_size=64):
        model.eval(), model(x), model.train()
"""
LOADER_PER_EPOCH_WITHOUT_DDP = """
model = nn.Linear(8, 4)
optimizer = sgd(model)
while True:
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        step(model, optimizer, x, y)
"""
SLOW_FIRST_OPTIMIZER = """
generator, critic = DDP(nn.Linear(8, 4)), DDP(nn.Linear(8, 4))
slow, busy = sgd(generator), sgd(critic)
loader = DataLoader(data, batch_size=16, shuffle=True)
while True:
    for x, y in loader:
        step(generator, slow, x, y)
        for _ in range(5):
            step(critic, busy, x, y)
"""
SAVED_WHOLE = """
import io, copy
model = DDP(nn.Linear(8, 4))
optimizer = sgd(model)
torch.save(model, io.BytesIO()), copy.deepcopy(model)
while True:
    for x, y in DataLoader(data, batch_size=16, sampler=torch.arange(320)):
        step(model, optimizer, x, y)
"""
TIMED_LOADER = """
model = DDP(nn.Linear(8, 4))
optimizer = sgd(model)
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1, timeout=60)
while True:
    for x, y in loader:
        step(model, optimizer, x, y)
"""
NO_SAMPLES = """
class Graphs:
    def __init__(self, items):
        self.x = torch.stack([x for x, _ in items])
loader = DataLoader(data, batch_size=16, collate_fn=Graphs)
model = nn.Linear(8, 4)
optimizer = sgd(model)
while True:
    for batch in loader:
        step(model, optimizer, batch.x, torch.zeros(16, dtype=torch.long))
"""
SUBGROUPS = """
groups = [dist.new_group([0]), dist.new_group([1])]
model = DDP(nn.Linear(8, 4), process_group=groups[rank])
optimizer = sgd(model)
while True:
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        step(model, optimizer, x, y)
"""
LISTS = """
model = DDP(nn.Linear(8, 4))
optimizer = sgd(model)
collate = lambda items: ([x.expand(3, 8) for x, _ in items], torch.stack([y for _, y in items]))
while True:
    for images, y in DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate):
        step(model, optimizer, torch.stack([image[0] for image in images]), y)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def written(body: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(HEAD + body)
        return str(script)

    return written


LONG = replace(SHORT, windows=4, window_seconds=0.3, max_warmup_windows=6)
Write = Callable[[str], str]


@pytest.mark.parametrize("body", [LOADER_PER_EPOCH, LOADER_PER_EPOCH_WITHOUT_DDP])
def test_a_loader_that_is_made_anew_in_each_epoch_stays_the_training_loader(
    run: Runner, write: Write, body: str
) -> None:
    ran = run(
        write(body), loader={"prefetch_factor": None}, training=["1:TensorDataset"], settings=LONG
    )
    assert all(w["samples"] == 32 * w["steps"] for w in ran.result["windows"])
    first, *others = ran.script["loaders"]
    assert ran.script["training"] == [first["key"]] and first["batches"] > 40
    assert len(others) == ("eval" in body)


def test_the_busiest_optimizer_may_step_last(run: Runner, write: Write) -> None:
    seen = run(write(SLOW_FIRST_OPTIMIZER), settings=LOOK).script
    assert seen["optimizer"] == 1 and seen["training"] == ["1:TensorDataset"]
    assert seen["samples_per_step"] == pytest.approx([3.2, 3.2], rel=0.1)  # 16 in five of its steps


def test_modules_that_are_saved_whole_and_any_sampler(run: Runner, write: Write) -> None:
    ran = run(write(SAVED_WHOLE), ddp={"bucket_cap_mb": 3})
    assert ran.script["samples_per_step"] == [16.0, 16.0]


def test_a_time_limit_of_workers_goes_with_them(run: Runner, write: Write) -> None:
    ran = run(write(TIMED_LOADER), loader={"num_workers": 0}, training=["1:TensorDataset"])
    assert ran.script["loaders"][0]["passed"] == {"num_workers": 0}


def test_batches_without_tensors_have_no_samples_unless_told(run: Runner, write: Write) -> None:
    assert run(write(NO_SAMPLES), settings=LOOK).script["samples_per_step"] == [0.0, 0.0]
    told = run(write(NO_SAMPLES), samples_per_step=16)
    assert all(w["samples"] == 32 * w["steps"] for w in told.result["windows"])


def test_ddp_on_some_of_the_ranks(run: Runner, write: Write) -> None:
    ran = run(write(SUBGROUPS))
    assert ran.result["collectives_checked"] > 0


def test_a_batch_may_be_a_list_of_samples(run: Runner, write: Write) -> None:
    assert run(write(LISTS), settings=LOOK).script["samples_per_step"] == [16.0, 16.0]


def test_what_a_script_starts_is_no_rank(run: Runner, write: Write) -> None:
    body = "import os\nassert not [n for n in os.environ if n in ('PYTHON_EXEC', 'NCCLTUNE_TOKEN')]"
    ran = run(write(f"{body}\nassert os.environ['NCCLTUNE_TRIAL'] == '1'\n{TIMED_LOADER}"))
    assert ran.result["samples_per_second"] > 0


# By plain commands.


@pytest.mark.slow
def test_a_plain_torchrun_command_measures_too(run: Runner) -> None:
    script = str(SCRIPTS / "validates.py")
    ran = run("torchrun", "--standalone", "--nproc-per-node", "2", script, plain=True)
    assert ran.script["samples_per_step"] == [16.0, 16.0]
    assert ran.script["early_variables"] == []


def test_what_the_script_sets_before_torch_is_told(run: Runner, tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    text = (SCRIPTS / "short.py").read_text()
    script.write_text(f"import os\nos.environ['OMP_NUM_THREADS'] = '2'\n{text}")
    ran = run(str(script), "--steps", "2000", settings=LOOK)
    assert ran.script["early_variables"] == ["OMP_NUM_THREADS"]
