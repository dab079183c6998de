"""`nccltune search`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nccltune.cli.separator import TakesCommand, check_dashes, nothing_follows

if TYPE_CHECKING:
    from nccltune.study.options import SearchOptions


def finite(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):  # no comparison of a range refuses a NaN
        raise click.BadParameter(f"must be a number, got {value}", param=parameter)
    return value


def _positive(_context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value is not None and not 1 <= value <= 1_000_000_000:
        raise click.BadParameter(f"must be 1 to 1000000000, got {value}", param=parameter)
    return value


def launches(_context: click.Context, parameter: click.Parameter, value: int) -> int:
    if value != 0 and not 6 <= value <= 12:
        raise click.BadParameter(
            f"must be 6 to 12, or 0 for none, got {value}: fewer cannot exclude chance",
            param=parameter,
        )
    return value


def listed(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Names that were given one by one, or several with commas between them."""
    return tuple(dict.fromkeys(name.strip() for text in value for name in text.split(",")))


def measure_seconds(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option, for the verbs that measure."""
    return click.option(
        "--measure-seconds",
        type=click.FloatRange(0.3, 600),
        callback=finite,
        default=1.2,
        show_default=True,
        metavar="S",
        help=text,
    )


_OF_OUR_JOB = (*("model", "image_size", "data", "precision", "channels_last", "cudnn_benchmark"),)
_OF_SCRIPTS = ("optimizer", "samples_per_step", "loader_match", "allow_saves", "workdir")


def _refuse_mixture(context: click.Context) -> None:
    """Options that mean nothing for the job at hand are a mistake."""
    script = bool(context.params["script"])
    for name in _OF_OUR_JOB if script else _OF_SCRIPTS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            why = (
                f"{option} is for nccltune's own job; the script has its own"
                if script
                else f"{option}: it is for a script, given after --"
            )
            raise click.UsageError(why)


@click.command(cls=TakesCommand)
@click.option(
    "--model",
    metavar="NAME|PKG.MODULE:FACTORY",
    help="torchvision classification "
    "model, or your own factory.  [resnet50; without GPUs and --model a small demo job]",
)
@click.option(
    "--trials",
    type=int,
    metavar="N",
    callback=_positive,
    help="Trials in all, the baseline and failed ones included.  [40]",
)
@click.option(
    "--time-budget",
    metavar="TIME",
    help="Start no trial that would end later, or leave no time for the confirmation, e.g. 10m.",
)
@click.option(
    "--space",
    metavar="NAME|FILE",
    help="Search space: default, comm, cpu, or a YAML file.  [default; cpu with gloo]",
)
@click.option(
    "--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True
)
@click.option(
    "--backend", type=click.Choice(["auto", "nccl", "gloo"]), default="auto", show_default=True
)
@click.option(
    "--nproc-per-node",
    type=int,
    metavar="N",
    callback=_positive,
    help="Ranks.  [all visible GPUs; 2 on the CPU]",
)
@click.option(
    "--emulate-hosts",
    type=click.IntRange(1),
    callback=lambda _context, _option, hosts: None if hosts == 1 else hosts,
    metavar="N",
    help="For testing: the ranks talk over sockets as if they sat on N hosts (1: as they do "
    "here). Needs NCCL.",
)
@click.option(
    "--launcher",
    type=click.Choice(
        ["auto", "warm", "torchrun", "slurm", "slurm-torchrun", "ssh", "ssh-torchrun"]
    ),
    default="auto",
    show_default=True,
    help="How ranks are started: warm, from a process that has torch imported, or by a plain "
    "torchrun command each time. auto: warm where it works. slurm: on all nodes of the allocation "
    "that the command runs in, warm; slurm-torchrun: there, by srun and torchrun each time. ssh, "
    "ssh-torchrun: the same on the --hosts.",
)
@click.option(
    "--hosts",
    metavar="A,B,...|FILE",
    help="For --launcher ssh: this machine and others, or a file with one on each line.",
)
@click.option(
    "--ssh",
    default="ssh",
    show_default=True,
    metavar="COMMAND",
    help="What reaches them, with options of yours: 'ssh -F FILE'.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The job's own interpreter: its torch and NCCL are what is tuned.  [nccltune's]",
)
@click.option("--allow-busy", is_flag=True, help="Go on although other processes use the GPUs.")
@click.option(
    "--batch-size",
    type=int,
    metavar="N",
    callback=_positive,
    help="A rank's batch size in the baseline.  [64]",
)
@click.option(
    "--num-workers",
    type=click.IntRange(0),
    metavar="N",
    help="DataLoader workers of a rank in the baseline.  [min(8, cores per rank)]",
)
@click.option("--image-size", type=int, metavar="N", callback=_positive, help="Pixels.  [224]")
@click.option(
    "--data",
    default="images",
    show_default=True,
    metavar="KIND",
    help="images (JPEG files made once), synthetic (one batch on the device), a FOLDER "
    "with class folders, or pkg.module:factory of a data set.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
    default="tf32",
    show_default="tf32; fp32 on the CPU",
)
@click.option("--channels-last", is_flag=True, help="Channels-last memory format.")
@click.option(
    "--cudnn-benchmark/--no-cudnn-benchmark",
    default=True,
    show_default=True,
    help="As in the job that is tuned.",
)
@click.option(
    "--fix",
    multiple=True,
    metavar="NAME=VALUE",
    help="Hold constant in the baseline and in all candidates. Repeatable.",
)
@click.option(
    "--only",
    multiple=True,
    callback=listed,
    metavar="NAME,...",
    help="Search only these parameters or targets (env, ddp, loader, batch). Repeatable.",
)
@click.option(
    "--exclude",
    multiple=True,
    callback=listed,
    metavar="NAME,...",
    help="Do not search these parameters or targets. Repeatable.",
)
@click.option(
    "--unpin",
    multiple=True,
    callback=listed,
    metavar="NAME,...",
    help="Measure without these variables that the site has set; they can be searched then.",
)
@click.option("--allow-guarded", is_flag=True, help="Also search what the space marks as guarded.")
@click.option("--allow-unsafe", is_flag=True, help="Also search what the space marks as unsafe.")
@measure_seconds(
    "Time that counts in a trial, in windows of 0.3 s or 5 steps; warm-up comes on top."
)
@click.option(
    "--confirm-launches",
    type=int,
    callback=launches,
    default=12,
    show_default=True,
    metavar="N",
    help="Most fresh launches of each side when the winner is compared with the defaults, 6 to 12; "
    "looked at after 6 and after 12. 0 for none, nor any to know the noise: the result is then not "
    "confirmed.",
)
@click.option(
    "--search-anyway",
    is_flag=True,
    help="Go on until --trials are spent, also with settings that cannot win more than the noise.",
)
@click.option(
    "--optimizer",
    type=click.IntRange(0),
    metavar="N",
    help="SCRIPT: the optimizer whose steps count, 0 for the first to step.  [the busiest]",
)
@click.option(
    "--samples-per-step",
    type=int,
    metavar="N",
    callback=_positive,
    help="SCRIPT: samples of a rank in a step.  [from the batch]",
)
@click.option(
    "--loader-match",
    metavar="TEXT",
    help="SCRIPT: the DataLoader that feeds the training, by file and line (train.py:57), number, "
    "or class of its data set.  [the one that gives a batch a step]",
)
@click.option(
    "--allow-saves",
    is_flag=True,
    help="SCRIPT: let it save checkpoints where it does, not below the trial's folder.",
)
@click.option(
    "--workdir",
    type=click.Choice(["here", "scratch"]),
    default="here",
    show_default=True,
    help="SCRIPT: run it here, or in a copy of the files that git tracks here.",
)
@click.option(
    "--with-serials",
    is_flag=True,
    help="Record the GPUs' UUIDs in the fingerprint too, so that an exchanged GPU is told.",
)
@click.option("--study", metavar="NAME", help="Name of the study.  [MODEL-BACKEND-xN]")
@click.option(
    "--storage",
    metavar="URL|PATH",
    help="Share the study with other tuners of the same command: postgresql://USER@HOST/DATABASE, "
    "a journal file that all of them see, or sqlite:///FILE for tuners of one machine.",
)
@click.option(
    "--studies-dir",
    type=click.Path(path_type=Path),
    default=Path("studies"),
    show_default=True,
    metavar="DIR",
)
@click.option("--new", is_flag=True, help="Start anew; an existing folder is renamed and kept.")
@click.option(
    "--sampler",
    type=click.Choice(["guided", "tpe", "random", "gp", "cmaes", "walk"]),
    default="guided",
    show_default=True,
    help="What proposes the next trial. guided: our own, by presets, a model of what each setting "
    "does, and what a trial costs. The others are for comparison.",
)
@click.option(
    "--pruner",
    type=click.Choice(["own", "none", "median", "wilcoxon", "hyperband"]),
    default="own",
    show_default=True,
    help="What ends a hopeless trial early. own: it is surely slower than the best so far; else "
    "one of Optuna's.",
)
@click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True)
@click.option(
    "--dry-run", is_flag=True, help="Show space, launch plan and forecast; start nothing."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]")
@click.pass_context
def search(context: click.Context, /, **given: Any) -> int:
    """Search for the settings that give the most samples per second.

    Each trial is a short real DDP run: of a job of ours, or after -- of your own training SCRIPT,
    -m MODULE, or torchrun command, unchanged. {batch_size}, {num_workers}, {bucket_cap_mb} and the
    like in ARGS stand for what is tried. Interrupted at any point, the same command goes on where
    it stopped.
    """
    from nccltune.cli.searching import run_search
    from nccltune.errors import UsageError

    check_dashes(context)
    if nothing_follows(context):
        raise UsageError("nothing after --; give the training script")
    dry_run, as_json = given.pop("dry_run"), given.pop("as_json")
    options = options_of(context, given, ("nccltune", *sys.argv[1:]))
    return run_search(options, dry_run=dry_run, as_json=as_json)


def options_of(
    context: click.Context, given: Mapping[str, Any], command: tuple[str, ...]
) -> SearchOptions:
    _refuse_mixture(context)
    from nccltune.study.options import SearchOptions, parse_duration, parse_fix
    from nccltune.study.urls import command_without_password

    budget = given["time_budget"]
    parsed = {
        "fix": parse_fix(given["fix"]),
        "time_budget": None if budget is None else parse_duration(budget),
    }
    shown = command_without_password(command)
    return SearchOptions(**{**given, **parsed, "command": shown})
