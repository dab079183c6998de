"""The user's own script under torchrun, with the attachment loaded in each rank before it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nccltune.errors import UsageError
from nccltune.launch.attached import write_program
from nccltune.launch.commands import JobCommand, read_command
from nccltune.launch.environment import launch_environment
from nccltune.launch.group import GroupFolder, RankGroup
from nccltune.launch.leftovers import TAG, new_tag
from nccltune.launch.plan import LaunchPlan, LaunchSettings
from nccltune.launch.scratch import copy_tracked
from nccltune.launch.stopping import StopFlag
from nccltune.launch.torchrun import OWN_LOGS, TorchrunProcesses
from nccltune.worker.attach import FORCED, PYTHON_EXEC, SAVES, TRIAL

_PLACEHOLDER = re.compile(
    r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}"
)  # ${name} is a shell's, or hydra's
_LIKE_PLACEHOLDER = re.compile(r"(?<!\$)\{(\s*[A-Za-z_][A-Za-z0-9_\- ]*)\}")
_SWITCHED_OFF = ("disabled", "dryrun", "offline")


@dataclass(frozen=True)
class ScriptCommand:
    """What is started: `target` is what Python would be given, SCRIPT ARGS or -m MODULE ARGS;
    `options` are torchrun's own, where the user gave the whole command (else None), of which
    `ranks` is what --nproc-per-node says. `python` is the interpreter that the command names.
    """

    target: tuple[str, ...]
    options: tuple[str, ...] | None = None
    ranks: str | None = None
    python: str | None = None

    @property
    def name(self) -> str:
        """What the script is called: train.py, or the module."""
        return self.target[1] if self.target[0] == "-m" else os.path.basename(self.target[0])

    @property
    def file(self) -> Path | None:
        """The script's file; None for a module."""
        return None if self.target[0] == "-m" else Path(self.target[0])

    @property
    def words(self) -> tuple[str, ...]:
        """As the user would type it after `--`."""
        return self.target if self.options is None else ("torchrun", *self.options, *self.target)

    def placeholders(self) -> list[str]:
        """Names in braces, which may be parameters, or misspelt ones, or mean something to the
        script.
        """
        found = (m[1] for word in self.target for m in _LIKE_PLACEHOLDER.finditer(word))
        return list(dict.fromkeys(found))

    def filled(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The target with values in place of the names in braces; what has none stays as it is."""

        def value(match: re.Match[str]) -> str:
            return values.get(match[1], match[0])

        return tuple(_PLACEHOLDER.sub(value, word) for word in self.target)


def read_script(argv: Sequence[str], environ: Mapping[str, str]) -> ScriptCommand:
    """SCRIPT ARGS, -m MODULE ARGS, `torchrun ... SCRIPT ARGS`, or either with `python` before it.

    Raises: UsageError for what is no script, or is started in another way.
    """
    words = tuple(argv)
    if not words:
        raise UsageError("no script after --; give it as in: nccltune search -- train.py --lr 0.1")
    # torchrun's own variables do not reach our launches.
    found = read_command(words, {n: v for n, v in environ.items() if not n.startswith("PET_")})
    if found.way == "torchrun":
        return _of_torchrun(words, found)
    python = None
    if found.way == "python" and found.script is not None:
        if kept := [word for word in words[1 : found.script] if word != "-u"]:
            raise UsageError(
                f"{' '.join(kept)}: options of Python are not passed on; torchrun starts the "
                "script without them"
            )
        python, words = found.python, words[found.script :]
    if words[0] == "-m":
        if len(words) < 2:
            raise UsageError("-m: give the module, as in: nccltune search -- -m package.train")
        return ScriptCommand(words, python=python)
    _check_script(words[0])
    return ScriptCommand(words, python=python)


def _of_torchrun(words: tuple[str, ...], found: JobCommand) -> ScriptCommand:
    at, nodes = found.script, found.nodes
    if found.without_python is not None:
        raise UsageError(
            f"{found.without_python}: the script has to be started by Python, or nothing can be "
            "measured in it; take that option out"
        )
    if at is None or at >= len(words):
        raise UsageError("torchrun: no script in the command")
    if nodes not in (None, "1", "1:1"):
        raise UsageError(f"--nnodes {nodes}: only one machine is searched; give --nnodes=1")
    options, target = words[found.options : at], words[at:]
    if (module := _module_flag(options)) is not None:
        options = (*options[:module], *options[module + 1 :])
        target = ("-m", *target)
    else:
        _check_script(target[0])
    return ScriptCommand(target, options, found.ranks, found.python)


def _module_flag(options: Sequence[str]) -> int | None:
    return next((at for at, word in enumerate(options) if word in ("-m", "--module")), None)


def _check_script(text: str) -> None:
    path = Path(text)
    if path.is_file() or path.is_dir():
        return
    if shutil.which(text) is not None or text in ("accelerate", "deepspeed", "mpirun", "srun"):
        raise UsageError(
            f"{text}: is a program, not a script in Python; give what it starts, as in: nccltune "
            "search -- train.py ..., which torchrun starts then"
        )
    raise UsageError(f"{text}: no such file; give the training script after --")


@dataclass(frozen=True)
class ScriptRun:
    """How the script is run in a trial, however its ranks are started."""

    command: ScriptCommand
    scratch: bool = False
    """Ranks run in a copy of the files that git tracks here."""
    allow_saves: bool = False

    def variables(self, base: Mapping[str, str], log_dir: Path) -> dict[str, str]:
        """What its ranks get beside a rank's own."""
        saves = {} if self.allow_saves else {SAVES: str(log_dir / "saves")}
        return {TRIAL: "1", **saves, **_quiet_trackers(base, log_dir)}

    def place(self, folder: Path) -> tuple[Path | None, Path | None]:
        """(what to remove afterwards, the folder to run in); None: nothing, here."""
        return copy_tracked(folder / "workdir") if self.scratch else (None, None)


class ScriptGroup(RankGroup):
    """The ranks of the script. They end by themselves once they were measured."""

    def __init__(self, folder: GroupFolder, workdir: Path | None, **given: object) -> None:
        super().__init__(folder=folder, **given)  # type: ignore[arg-type]
        self._log_dir, self._workdir = folder.path, workdir

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._log_dir / "saves", ignore_errors=True)  # checkpoints can be large
        if self._workdir is not None:
            shutil.rmtree(self._workdir, ignore_errors=True)
            self._workdir = None
        if (self._log_dir / FORCED).exists():
            (self._log_dir / FORCED).unlink()
            self._warn(
                "the script did not end when it was told to (it may catch SystemExit, or wait for "
                "something) and was ended by force; its measurement counts"
            )


@dataclass
class ScriptLauncher:
    """Every worker group is one run of the script, and measures once."""

    name = "torchrun"

    settings: LaunchSettings
    stop: StopFlag
    run: ScriptRun
    warnings: list[str] = field(default_factory=list)
    _program: Path | None = None

    def plan(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        address: str,
        token: str,
        *,
        tag: str,
        placed: Mapping[str, str],
        probe: bool = False,
    ) -> LaunchPlan:
        settings = self.settings
        if self._program is None:
            self._program = write_program(settings.worker_path, settings.python)
        added = {
            **settings.rank_variables(process_env, log_dir, address, token, probe),
            **self.run.variables(settings.base, log_dir),
            PYTHON_EXEC: str(self._program),
            TAG: tag,
        }
        return LaunchPlan(self._argv(log_dir / OWN_LOGS, placed), added)

    def _argv(self, logs: Path, placed: Mapping[str, str]) -> tuple[str, ...]:
        ours = ("--max-restarts=0", "--monitor-interval=0.1", f"--log-dir={logs}")
        options = self.run.command.options
        if options is None:
            ranks = self.settings.nproc_per_node
            options = ("--standalone", "--nnodes=1", f"--nproc-per-node={ranks}")
        start = (self.settings.python, "-m", "torch.distributed.run")
        return (*start, *options, *ours, *self.run.command.filled(placed))

    def open(
        self,
        process_env: Mapping[str, str],
        log_dir: Path,
        *,
        probe: bool = False,
        placed: Mapping[str, str] | None = None,
    ) -> RankGroup:
        folder = GroupFolder(log_dir)
        address, tag = folder.connection.address, new_tag()
        plan = self.plan(
            process_env,
            folder.path,
            address,
            folder.token,
            tag=tag,
            placed=placed or {},
            probe=probe,
        )
        env = launch_environment(self.settings.base, self.settings.site, plan.added)
        workdir, cwd = self.run.place(folder.path)
        return ScriptGroup(
            folder,
            workdir,
            processes=TorchrunProcesses(plan, env, folder.path / "launcher.log", tag, cwd),
            gpus=self.settings.gpus,
            watch_memory=self.settings.watch_memory,
            stop=self.stop,
            warn=self.warnings.append,
        )

    def close(self) -> None: ...


def _quiet_trackers(base: Mapping[str, str], log_dir: Path) -> dict[str, str]:
    """Experiment trackers shall not fill up with forty short runs."""
    wandb = {} if base.get("WANDB_MODE") in _SWITCHED_OFF else {"WANDB_MODE": "offline"}
    return {
        **wandb,
        "WANDB_DIR": str(log_dir),
        "MLFLOW_TRACKING_URI": (log_dir / "mlruns").as_uri(),
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
    }
