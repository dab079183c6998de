"""`nccltune search` with the study's lock held: begin or resume it and carry it to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nccltune.cli import tables
from nccltune.cli.first_launch import first_launch, suited
from nccltune.cli.narrowing import narrow
from nccltune.cli.reporters import open_reporter
from nccltune.cli.speaking import say
from nccltune.errors import Interrupted, UsageError
from nccltune.launch.environment import DIAGNOSTIC
from nccltune.launch.leftovers import own_processes
from nccltune.launch.parts import Followers
from nccltune.launch.protocol import Launcher
from nccltune.launch.stopping import StopFlag
from nccltune.launch.worker_files import place_worker
from nccltune.machine.health import Reading, read
from nccltune.output.verdicts import begun_elsewhere, repeated
from nccltune.space import ResolvedSpace
from nccltune.study.batch_sizes import (
    FEWEST_FOR_BATCH,
    Memory,
    leaves_out_larger,
    stage_parameters,
)
from nccltune.study.budget import Budget
from nccltune.study.confirming import confirm_results, plain_more
from nccltune.study.definition import Definition, going_on, refuse_changes
from nccltune.study.effects import Silences
from nccltune.study.fingerprinting import fingerprint_of, host_digest
from nccltune.study.folder import StudyPaths, forget, has_records, read_definition
from nccltune.study.measuring import Measurer
from nccltune.study.options import SearchOptions
from nccltune.study.outcomes import own_outcome
from nccltune.study.planner import Earlier, Planner
from nccltune.study.proposals import Proposer
from nccltune.study.pruning import Pruning
from nccltune.study.results import write_results
from nccltune.study.sampling.choosing import Choice
from nccltune.study.sampling.extras import require
from nccltune.study.script_survey import refuse_no_place, with_facts
from nccltune.study.search import Ending, Search
from nccltune.study.store import Store, has_results
from nccltune.study.summary import Summary
from nccltune.study.survey import Survey, nccl_version, refuse_busy, refuse_empty, resolve_space
from nccltune.study.together import Sharing, Team, joined, refuse_shared, take_over
from nccltune.worker.spec import Settings

NOT_CONFIRMED = (
    "--confirm-launches 0: nothing is confirmed, and the launches that show the noise and where a "
    "step's time goes are left out too, so no setting is left out for them and all trials are made"
)


def carry_out(
    found: Survey,
    paths: StudyPaths,
    launcher: Launcher,
    plain: Launcher,
    cache: Path,
    stop: StopFlag,
    private: Mapping[str, str],
    earlier: Callable[[ResolvedSpace], Sequence[Earlier]] = lambda _space: (),
    again: str | None = None,
    probed: dict[str, Any] | None = None,
    sharing: Sharing | None = None,
) -> tuple[Summary, Ending]:
    """The study at its end, and what ended it. `plain` starts ranks by plain torchrun commands,
    `private`: see `Measurer`; `earlier` says what to try first, `again` which command goes on
    after an interruption, `probed` is what a first launch has shown already, `sharing` where other
    tuners work on the same study. Raises NccltuneError.
    """
    if sharing is None:
        refuse_shared(paths)
    stored = read_definition(paths) if paths.definition.exists() else None
    if stored is not None and not has_results(paths):
        forget(paths)  # nothing was found out: what is asked for now need not be the same
        stored = None
    if stored is None and has_records(paths):
        raise UsageError(
            f"{paths.folder}: has records but no study.yaml that says of what; restore it, or give "
            "--new (the old folder is kept)"
        )
    if not found.options.allow_busy:  # after our own leftovers are gone
        stop.check_now()
        refuse_busy(found.gpus)
    if stored is not None:
        found = with_facts(found, stored["probe"])
        space = resolve_space(found, stored["probe"])
        refuse_changes(paths, definition_of(found, space, stored["probe"]))
        place_worker(paths.worker)
    else:
        place_worker(paths.worker)
        probe = probed or first_launch(found, launcher, plain, paths.logs / "probe", cache)
        found = with_facts(found, probe)
        space = resolve_space(found, probe)
        refuse_no_place(found, space)
        refuse_empty(space)
        say(tables.space_text(space))
        if leaves_out_larger(space, found.task.batch_size, found.options.trials or 40):
            say(f"larger batches are tried in searches of {FEWEST_FOR_BATCH} trials or more")
        begun = replace(
            definition_of(found, space, probe),
            fingerprint=fingerprint_of(found, probe),
            host=host_digest(found.gpus),
        )
        stored = begun.write(paths).to_dict()
    store = Store(paths)
    if stored.get("host", host_digest(found.gpus)) != host_digest(found.gpus):
        say(f"note: {begun_elsewhere(store.noise())}")
    launcher = suited(found, launcher, plain, stored["probe"])
    first = earlier(space)
    with joined(sharing, definition_of(found, space, stored["probe"]), store) as team:
        if sharing is not None and team is not None:
            taken = f"{team.taken()} of {found.options.trials or 40} trials are taken"
            say(f"tuner {team.tuner} on study {sharing.name} in {sharing.shared.where}: {taken}")
        ending = _measure(found, store, launcher, plain, space, stored, stop, private, first, team)
        summary = Summary.of(store, stored)
        _write(summary, team, finished=ending is not None)
    command = again or going_on(found.options.command)
    return summary, _told_ending(ending, found, paths, len(store.trials), command)


def _write(summary: Summary, team: Team | None, *, finished: bool) -> None:
    """The files of the result: this tuner's, or those of the tuner that has confirmed it."""
    elsewhere = None if team is None else team.others_result()
    if elsewhere is not None:
        take_over(elsewhere, summary.paths)
        return
    write_results(summary)
    outcome, own = own_outcome(summary), summary.own
    # Without a verdict on what was fastest, it is left to others to confirm it.
    settled = own is not None and own.settled
    if team is not None and team.confirms and finished and settled and outcome is not None:
        team.publish_result(outcome.line)


def definition_of(found: Survey, space: ResolvedSpace, probe: dict[str, Any] | None) -> Definition:
    """What this search would be about, to be written or compared."""
    return Definition(
        task=found.task,
        space=space,
        machine=found.machine,
        sampler=found.options.sampler,
        seed=found.options.seed,
        command=found.options.command,
        probe=probe,
        site={name: v.value for name, v in found.site.items() if name not in DIAGNOSTIC},
        unpinned=found.options.unpin,
        nodes=found.nodes,
    )


def _measure(
    found: Survey,
    store: Store,
    launcher: Launcher,
    plain: Launcher,
    space: ResolvedSpace,
    stored: Mapping[str, Any],
    stop: StopFlag,
    private: Mapping[str, str],
    earlier: Sequence[Earlier],
    team: Team | None,
) -> Ending | None:
    """Run the search; returns how it ended, None when the user stopped it."""
    trials, done = found.options.trials or 40, len(store.trials)
    if done:
        verb = "is finished" if done >= trials else "goes on"
        say(f"study {store.paths.name} {verb}: {done} of {trials} trials are there")
    budget = Budget(trials, found.options.time_budget)
    # Tuners on one study draw other numbers each.
    draws = found.options.seed + (0 if team is None else int(team.tuner, 16))
    proposer = Proposer(
        store.paths.journal,
        stage_parameters(space),
        store.trials,
        Choice(found.options.sampler, space, draws % (1 << 32)),
        lambda trial: store.measurement(trial).launch,
    )
    memory = Memory(min(found.machine.gpu_memory_bytes, default=None), store.peak_memory)
    silences = Silences(store.measurements, space)
    planner = Planner(space, proposer, found.task.batch_size, memory, silences, earlier)
    limit = found.options.confirm_launches
    measurer = Measurer(
        store=store,
        launcher=launcher,
        task=found.task,
        space=space,
        nccl=nccl_version(found, stored["probe"]),
        config_fields=frozenset(found.job["nccl_config_fields"]),
        settings=settings_for(found.options.measure_seconds),
        site=found.site,
        memory_is_ours=not found.options.allow_busy,
        node_words=found.node_words,
        private=private,
        health=partial(_read, found),
        gpus=found.gpus,
    )
    if limit == 0 and done < trials:
        say(NOT_CONFIRMED)
    confirmed: list[str] = []
    with open_reporter(store, space, budget, limit, found.node_names) as reporter:
        search = Search(
            store=store,
            planner=planner,
            measurer=measurer,
            budget=budget,
            reporter=reporter,
            stop=stop,
            confirm=limit > 0,
            settle=not found.options.search_anyway,
            pruning=pruning_of(found.options),
            plain_more=plain_more(launcher, plain),
            diagnoses=found.task.script is None,
            known=lambda: Summary.of(store, stored).own,
            partners=team,
        )
        search.narrow = partial(narrow, found, measurer, planner, reporter)
        try:
            ending: Ending | None = search.run()
            if team is not None and team.followers is not None:
                _dismiss(search, team.followers)
            if search.confirm and _ours_to_confirm(search, team, ending):
                seed = found.options.seed
                confirmed = confirm_results(
                    measurer,
                    budget,
                    reporter,
                    stop,
                    space,
                    limit,
                    plain,
                    seed,
                    found.options.sampler,
                )
        except Interrupted:
            ending = None
    notes = [*launcher.warnings, *plain.warnings, *planner.rejected.values(), *confirmed]
    if measurer.disturbed:
        notes.append(repeated(measurer.disturbed, "measurement"))
    for text in dict.fromkeys(notes):
        say(f"note: {text}")
    return ending


def _read(found: Survey) -> Reading:
    """The state of this machine; ranks of a job step are ours too."""
    return read(found.gpus, own_processes() if found.nodes else ())


def _ours_to_confirm(search: Search, team: Team | None, ending: Ending | None) -> bool:
    """Of several tuners one confirms; the others say which."""
    if team is None:
        return True
    if team.followers is not None and ending == "time":
        search.wait_for_quiet()  # one that was stopped by force is not known to be gone at once
    left = team.leave_to(out_of_time=ending == "time")
    if left is not None:
        search.reporter.note(left)
        return False
    if not search.wait_for_quiet():
        search.reporter.note("note: other tuners still measure beside the confirmation")
    search.complete_noise()
    if not search.confirm:  # no time for it: another tuner may have more
        team.leave_confirmation()
    return search.confirm


def _dismiss(search: Search, followers: Followers) -> None:
    """The tuners that this one has started end, since what comes now is to run alone."""
    if followers.busy():
        search.reporter.note("waiting for the tuners of the other parts to end")
    for node in followers.end(search.quiet_seconds):
        search.reporter.note(f"note: the tuner on {node} was stopped: it did not end by itself")
    search.stop.check()
    while search.catch_up():
        pass


def pruning_of(options: SearchOptions) -> Pruning:
    """Raises UsageError where the pruner cannot act, or a package that it needs is missing."""
    require(f"--pruner {options.pruner}")
    found = Pruning(options.pruner, settings_for(options.measure_seconds).windows)
    found.check()
    return found


def settings_for(measure_seconds: float) -> Settings:
    """Counted windows that last so long together, one at least."""
    usual = Settings()
    windows = max(1, round(measure_seconds / usual.window_seconds))
    longest = max(usual.max_measure_seconds, 2 * measure_seconds)
    return replace(usual, windows=windows, max_measure_seconds=longest)


def _told_ending(
    ending: Ending | None, found: Survey, paths: StudyPaths, done: int, command: str
) -> Ending:
    """Raises Interrupted, with the command that goes on, when the user stopped the search."""
    if ending is None:
        raise Interrupted(
            f"stopped after {done} of {found.options.trials} trials, all saved in {paths.folder}\n"
            f"go on with: {command}"
        )
    count = f"{done} trial{'' if done == 1 else 's'}"
    reasons: dict[Ending, str] = {
        "trials": f"done: {count}, the baseline included",
        "time": f"the time budget has no room for more than {done} of {found.options.trials} "
        "trials; the same command goes on",
        "settled": f"done after {count} of {found.options.trials}: more are unlikely to find "
        "anything at your batch size that is faster by more than launches scatter "
        "(--search-anyway goes on)",
        "exhausted": f"done after {count}: nothing else that is legal here and could win "
        "something is left at your batch size (larger ones get a quarter of 8 or more trials)",
    }
    say(reasons[ending])
    return ending
