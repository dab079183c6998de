"""Where a step's time goes, and which settings a search leaves out since they cannot win enough."""

from __future__ import annotations

import time

from nccltune.cli.reporters import PlainReporter
from nccltune.errors import StudyError
from nccltune.output.diagnosis import paragraph
from nccltune.output.verdicts import percent
from nccltune.stats.noise import noise_threshold
from nccltune.study.bounds import gains, left_out
from nccltune.study.diagnosing import diagnose, diagnosis_in, record
from nccltune.study.measuring import Measurer
from nccltune.study.planner import Planner
from nccltune.study.survey import Survey
from nccltune.worker.spec import Settings


def narrow(
    found: Survey, measurer: Measurer, planner: Planner, reporter: PlainReporter
) -> tuple[str, ...]:
    """Says where a step's time goes. Returns the parameters that the search leaves out for it."""
    store, space = measurer.store, measurer.space
    if found.task.script is not None:
        return ()  # it cannot be run without its loader, or without its all-reduce
    diagnosis = diagnosis_in(store)
    if diagnosis is None:
        began = time.monotonic()
        log_dir = store.paths.launch_logs(store.next_launch())
        given = measurer.effective(store.trials[0].parameters)
        try:
            diagnosis = diagnose(
                found, measurer.launcher, log_dir, given=given, settings=Settings(windows=2)
            )
        except StudyError as error:
            reporter.note(f"note: not known where a step's time goes: {error}")
            return ()
        record(store, diagnosis, measurer.launcher.name, time.monotonic() - began)
        reporter.note(paragraph(diagnosis))
    threshold = noise_threshold([store.noise()])
    planner.expect(gains(space, diagnosis))
    leave = left_out(space, diagnosis, threshold)
    for about, names in leave.items():
        verb = "searched all the same" if found.options.search_anyway else "not searched"
        reporter.note(
            f"{verb}, since {about} settings cannot win the {percent(threshold)} that can be shown "
            f"here: {' '.join(names)}"
            + ("" if found.options.search_anyway else " (--search-anyway searches them)")
        )
    if found.options.search_anyway:
        return ()
    return tuple(name for names in leave.values() for name in names)
