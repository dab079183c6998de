"""Before a script is started: what it is, what the command has a place for, what is here."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nccltune.errors import StudyError, UsageError
from nccltune.launch.alone import ask_twice_if_lost
from nccltune.launch.ask import JobPython
from nccltune.launch.commands import rank_count
from nccltune.launch.emulation import pinned_variables
from nccltune.launch.protocol import Launcher, Limits
from nccltune.launch.script import ScriptCommand, read_script
from nccltune.launch.stopping import StopFlag
from nccltune.machine.gpus import visible_gpus
from nccltune.space import ResolvedSpace
from nccltune.space.arguments import KINDS
from nccltune.study.budget import patient
from nccltune.study.definition import Task
from nccltune.study.options import SearchOptions
from nccltune.study.script_task import ScriptTask
from nccltune.study.survey import Survey, device_of, look_here, whole_number
from nccltune.worker.attach import PYTHON_EXEC
from nccltune.worker.spec import Workload


def check_script(options: SearchOptions, environ: Mapping[str, str]) -> None:
    """What can be known of the command before anything is asked. Raises UsageError."""
    command = read_script(options.script, environ)
    task = ScriptTask(command, _placed(command))
    _asked_ranks(options, command)
    for name in ("batch_size", "num_workers"):
        if getattr(options, name) is not None and name not in task.placed:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{{{name}}} has no place in the script's arguments, so {option} would do nothing; "
                f"write e.g. {command.name} {option} {{{name}}}, or leave the option out"
            )
    _refuse_asked(options, task, task.no_place(frozenset()))


def with_scripts_python(options: SearchOptions, environ: Mapping[str, str]) -> SearchOptions:
    """With the interpreter that the command itself names, where no other is given. Raises
    UsageError.
    """
    if PYTHON_EXEC in environ:
        raise UsageError(
            f"{PYTHON_EXEC}={environ[PYTHON_EXEC]}: torchrun would start ranks with that, without "
            "our attachment; unset it, and name the interpreter with --python"
        )
    named = read_script(options.script, environ).python
    if named is None or options.python is not None:
        return options
    same = os.path.dirname(os.path.abspath(named)) == os.path.dirname(sys.executable)
    return options if same else replace(options, python=named)


def survey_script(options: SearchOptions, python: JobPython, stop: StopFlag) -> Survey:
    """Look and ask; starts nothing but one short helper process.

    Raises: UsageError for whatever cannot work, before anything was written to the study, and
    HostFailed.
    """
    environ = python.base
    command = read_script(options.script, environ)
    placed = _placed(command)
    visible = visible_gpus(environ) if options.device != "cpu" else ()
    job = python.ask({"script": command.name}, stop)
    device, notes = device_of(options, visible, job, environ)
    here = look_here(options, _asked_ranks(options, command), device, job, environ)
    script = ScriptTask(
        command=command,
        placed=placed,
        optimizer=options.optimizer,
        samples_per_step=options.samples_per_step,
        loader_match=options.loader_match,
        allow_saves=options.allow_saves,
        scratch=options.workdir == "scratch",
    )
    task = Task(
        workload=_workload(command, device, here.backend, options.seed),
        nproc_per_node=here.ranks,
        batch_size=whole_number(options.fix.get("batch_size"), options.batch_size or 64),
        num_workers=here.num_workers(options),
        python=options.python,
        emulate_hosts=options.emulate_hosts,
        script=script,
    )
    complete = replace(options, trials=options.trials or 40)
    told = (*notes, *here.notes)
    site = pinned_variables(environ)
    return Survey(complete, task, here.machine, here.gpus, site, job, python.python, told)


class LookFailed(StudyError):
    """The script failed as it is; `kind` is that of the failure."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


def _placed(command: ScriptCommand) -> tuple[str, ...]:
    """Parameters that the command has a place for. Other names in braces are the script's own.

    Raises: UsageError for what looks like a misspelt one.
    """
    known = {_plain(name): name for name in KINDS}
    placed = []
    for name in command.placeholders():
        if name in KINDS:
            placed.append(name)
        elif near := difflib.get_close_matches(_plain(name), known, n=1, cutoff=0.75):
            raise UsageError(
                f"{{{name}}}: no parameter of that name, did you mean {{{known[near[0]]}}}?"
            )
        elif name.startswith(("NCCL_", "TORCH_NCCL_")):
            raise UsageError(
                f"{{{name}}}: variables are set in the script's environment; take it out of the "
                "command"
            )
    return tuple(placed)


def _plain(name: str) -> str:
    """A name without what is easily written otherwise: case, dashes and blanks."""
    return re.sub(r"[-_\s]", "", name).lower()


def _asked_ranks(options: SearchOptions, command: ScriptCommand) -> int | None:
    """Raises UsageError where torchrun's options and ours say different things."""
    own = options.nproc_per_node
    if command.options is None:
        return own
    text = command.ranks or "1"
    if (count := rank_count(text)) is None:
        return own  # gpu, auto: as many as there are
    if own is not None and own != count:
        raise UsageError(f"--nproc-per-node {own}: torchrun is given {text}; leave one of them out")
    return count


def _workload(command: ScriptCommand, device: str, backend: str, seed: int) -> Workload:
    return Workload(
        model=command.name,
        data="script",
        folder=None,
        image_size=0,
        precision="",
        channels_last=False,
        cudnn_benchmark=False,
        device=device,
        backend=backend,
        seed=seed,
    )


def look_at(
    survey: Survey,
    launcher: Launcher,
    log_dir: Path,
    process_env: Mapping[str, str],
) -> dict[str, Any]:
    """Run the script as it is for some steps, under NCCL's full log. Returns what was seen of it.

    Raises: StudyError when it fails or never trains, UsageError where options name nothing of it,
    Interrupted.
    """
    script = survey.task.script
    assert script is not None
    message = {"type": "measure", "id": "look", "settings": None, **script.request({}, {})}
    outcome = ask_twice_if_lost(
        launcher,
        process_env,
        log_dir,
        message,
        probe=True,
        placed=survey.task.placed_texts({}),
        limits=patient(Limits()),
    )
    if outcome.failure is not None:
        failure = outcome.failure
        tail = f"\n{failure.excerpt}" if failure.tail else ""
        raise LookFailed(
            f"{script.command.name} cannot be measured ({failure.kind}): {failure.message}{tail}\n"
            f"nothing of ours was set; see {failure.log}",
            failure.kind,
        )
    assert outcome.result is not None
    check_facts(script, survey.task.nproc_per_node, outcome.result["script"])
    return {
        **outcome.result["script"],
        "parameters_equal": outcome.result["parameters_equal"],
        "bucket_bytes": outcome.result["bucket_bytes"],
    }


def check_facts(script: ScriptTask, expected: int, facts: Mapping[str, Any]) -> None:
    """`expected`: how many ranks. Raises StudyError for what cannot be measured so, and UsageError
    for an option that names nothing of the script.
    """
    ranks = facts["world_size"]
    if ranks != expected:
        raise StudyError(
            f"torchrun started {ranks} ranks, {expected} were expected: write --nproc-per-node=N "
            "in full"
        )
    _check_match(script, facts)
    taken = len(facts["optimizers"])
    if not facts["told"] and facts["optimizer"] >= taken:
        raise StudyError(
            f"--optimizer {facts['optimizer']}: {taken} optimizer{'' if taken == 1 else 's'} of "
            f"{script.command.name} took steps; they are counted from 0"
        )
    if min(facts["samples_per_step"]) <= 0:
        raise StudyError(
            f"{script.command.name}: its batches hold no tensor whose first dimension could be "
            "samples; say how many a rank has in a step: --samples-per-step N"
        )


def _check_match(script: ScriptTask, facts: Mapping[str, Any]) -> None:
    """Raises UsageError where --loader-match names none of the loaders that were seen."""
    if script.loader_match is None or facts["training"]:
        return
    made = ", ".join(f"{r['key']} ({r['place']})" for r in facts["loaders"]) or "none"
    raise UsageError(
        f"--loader-match {script.loader_match} matches no DataLoader; made were: {made}"
    )


def with_facts(survey: Survey, probe: Mapping[str, Any] | None) -> Survey:
    """The survey, with what the probe launch has seen of the script."""
    script = survey.task.script
    if script is None or probe is None:
        return survey
    known = script.looked_at(probe["script"])
    assert known.facts is not None
    task = replace(survey.task, script=known)
    if "batch_size" not in script.placed:
        task = replace(task, batch_size=known.facts.batch_size)
    if "num_workers" not in script.placed:
        task = replace(task, num_workers=known.facts.num_workers)
    return replace(survey, task=task)


def plain_because(probe: Mapping[str, Any]) -> str | None:
    """Why ranks cannot have torch imported before the script begins, where that is so."""
    seen = probe["script"]
    if names := seen["early_variables"]:
        return f"it sets variables that are read when torch is imported: {' '.join(names)}"
    why: str | None = seen.get("plain_because")
    return why


def refuse_no_place(survey: Survey, space: ResolvedSpace) -> None:
    """Raises UsageError for a parameter that the user asks for and that cannot reach the script."""
    script, options = survey.task.script, survey.options
    if script is None:
        return
    reasons = script.no_place(frozenset(survey.job["ddp_arguments"]))
    own_space = options.space is not None and ("/" in options.space or "." in options.space)
    dropped = {n.parameter for n in space.notes if n.action == "dropped"} if own_space else set()
    _refuse_asked(options, script, reasons, dropped - {*options.exclude})


def _refuse_asked(
    options: SearchOptions,
    script: ScriptTask,
    reasons: Mapping[str, str],
    also: Collection[str] = (),
) -> None:
    for name, reason in reasons.items():
        if name not in (*options.fix, *options.only, *also):
            continue
        option = "leave it out of --fix" if name in options.fix else f"--exclude {name}"
        raise UsageError(
            f"{name}: {reason}; write {{{name}}} where the script takes it, as in "
            f"`{script.command.name} --{name.replace('_', '-')} {{{name}}}`, or {option}"
        )
