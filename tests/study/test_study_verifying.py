"""What of a result acts here, and what a comparison says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from study_jobs import MACHINE, TASK, WITHOUT_LOADER

from nccltune.launch.protocol import Failure
from nccltune.machine.fingerprint import ALL, BATCH, DDP, LOADER, NCCL, Difference
from nccltune.nccl.site import SiteVariable
from nccltune.output.best import Best
from nccltune.stats.verdict import Verdict, Word
from nccltune.study.options import SearchOptions
from nccltune.study.settings_file import JobSettings
from nccltune.study.survey import Survey
from nccltune.study.verifying import (
    acting_here,
    by_failure,
    by_verdict,
    groups_of,
    mattering,
    nothing_set,
    sets_something,
)

NVLINK = {"version": "2.28.9", "transport": ["P2P"], "network": None}
SOCKETS = {"version": "2.28.9", "transport": ["NET"], "network": "Socket"}
SETTINGS = JobSettings(
    "best.yaml",
    env={"NCCL_SOCKET_NTHREADS": "2", "NCCL_ALGO": "ring"},
    ddp={"bucket_cap_mb": 50},
)


def best(word: str | None = "FASTER", **given: Any) -> Best:
    verdict = None if word is None else {"word": word, "ratio": 1.25, "low": 1.21, "high": 1.35}
    empty: dict[str, Any] = {name: {} for name in ("env", "ddp", "loader", "machine")}
    own = {**empty, "batch_size": 64, "workload": {"batch_size": 64}, "provenance": {}}
    return Best(**{**own, "verdict": verdict, **given})


def survey(
    task: Any = WITHOUT_LOADER, site: dict[str, str] | None = None, **options: Any
) -> Survey:
    held = {n: SiteVariable(n, v, "environment") for n, v in (site or {}).items()}
    job = {"nccl_built": "2.27.5", "ddp_arguments": []}
    return Survey(SearchOptions(**options), task, MACHINE, (), held, job, "python", ())


def test_what_cannot_act_is_dead_and_not_set() -> None:
    found = acting_here(best(), SETTINGS, survey(), NVLINK)
    assert found.settings.env == {"NCCL_ALGO": "ring"}
    assert found.settings.ddp == {"bucket_cap_mb": 50}
    assert found.dead.keys() == {"NCCL_SOCKET_NTHREADS"} and found.differs
    assert acting_here(best(), SETTINGS, survey(), SOCKETS).dead == {}


def test_without_nccl_none_of_its_variables_acts() -> None:
    gloo = replace(WITHOUT_LOADER, workload=replace(WITHOUT_LOADER.workload, backend="gloo"))
    found = acting_here(best(), SETTINGS, survey(gloo), None)
    assert found.dead.keys() == {"NCCL_SOCKET_NTHREADS", "NCCL_ALGO"}


def test_the_site_wins() -> None:
    site = {"NCCL_ALGO": "Tree", "NCCL_NVLS_ENABLE": "0"}
    wanted = replace(SETTINGS, env={"NCCL_ALGO": "ring", "NCCL_NVLS_NCHANNELS": "8"}, ddp={})
    found = acting_here(best(), wanted, survey(site=site), NVLINK)
    assert found.settings.env == {} and not found.differs
    assert found.kept == {
        "NCCL_ALGO": "the site sets it to 'Tree', with the defaults too",
        "NCCL_NVLS_NCHANNELS": "the site has switched NVLink multicast off",
    }


def test_loader_settings_are_held_against_the_jobs_own() -> None:
    same = replace(SETTINGS, env={}, ddp={}, loader={"num_workers": 2, "pin_memory": True})
    assert not acting_here(best(), same, survey(TASK), NVLINK).differs
    more = replace(same, loader={"num_workers": 8, "prefetch_factor": 4})
    found = acting_here(best(), more, survey(TASK), NVLINK)
    assert found.differs and found.settings.loader == {"num_workers": 8, "prefetch_factor": 4}


def test_what_fix_held_is_on_both_sides() -> None:
    held = survey(fix={"NCCL_BUFFSIZE": 8388608, "bucket_cap_mb": 50})
    same = replace(SETTINGS, env={"NCCL_BUFFSIZE": "8388608"})
    assert not acting_here(best(), same, held, NVLINK).differs
    dead = survey(fix={"NCCL_SOCKET_NTHREADS": 2})
    only = replace(SETTINGS, env={"NCCL_SOCKET_NTHREADS": "2"}, ddp={})
    assert not acting_here(best(), only, dead, NVLINK).differs


@pytest.mark.parametrize(
    ("word", "low", "high", "status", "told"),
    [
        ("FASTER", 1.2, 1.3, "still_good", "Faster than the defaults: 25.0% more samples/s"),
        ("FASTER", 1.05, 1.15, "still_good", "; less than the 25.0% that was promised"),
        ("WITHIN_NOISE", 0.99, 1.01, "no_longer_better", ": keep the defaults"),
        ("SLOWER", 0.7, 0.8, "harmful", ": do not use it here"),
        ("INCONCLUSIVE", 0.9, 1.2, "cannot_tell", "Inconclusive"),
    ],
)
def test_each_verdict_is_an_answer(
    word: Word, low: float, high: float, status: str, told: str
) -> None:
    found = Verdict(word, (low + high) / 2, low, high, 0.02, 6)
    answer, text = by_verdict(found, best().verdict)
    assert answer == status and told in text
    assert ("less than" in text) == (high < 1.21 and word == "FASTER")


def test_too_few_launches_say_how_many() -> None:
    found = Verdict("INCONCLUSIVE", 1.1, None, None, 0.02, 2, more=4)
    answer, text = by_verdict(found, None)
    assert answer == "cannot_tell" and text.startswith("2 of the 6 fresh launches")


def test_launches_that_fail_do_harm() -> None:
    answer, text = by_failure(Failure("nccl_error", "invalid usage"), SETTINGS)
    assert answer == "harmful" and "nccl_error: invalid usage" in text and "NCCL_ALGO=ring" in text


def test_nothing_left_to_compare() -> None:
    dead = acting_here(best(), replace(SETTINGS, env={"NCCL_SOCKET_NTHREADS": "2"}, ddp={}),
                       survey(), NVLINK)  # fmt: skip
    answer = nothing_set(dead)
    assert answer is not None and answer[0] == "no_longer_better" and "can act here" in answer[1]
    own = acting_here(best(), replace(SETTINGS, env={}, ddp={}), survey(), NVLINK)
    answer = nothing_set(own)
    assert answer is not None and "what the job does here anyway" in answer[1]
    assert nothing_set(acting_here(best(), SETTINGS, survey(), NVLINK)) is None


def test_files_that_keep_the_defaults() -> None:
    assert sets_something(best()) and sets_something(best(None))
    assert not sets_something(best(None, provenance={"trial": 0}))
    assert not sets_something(best("WITHIN_NOISE")) and not sets_something(best("INCONCLUSIVE"))


def test_what_matters_is_what_the_result_sets() -> None:
    driver = Difference("driver", "1", "2", frozenset({NCCL, DDP}))
    cores = Difference("cores", 8, 4, frozenset({LOADER}))
    assert groups_of(best(env={"NCCL_ALGO": "ring"})) == {NCCL}
    assert groups_of(best(batch_size=128)) == {BATCH}
    assert groups_of(best("WITHIN_NOISE")) == ALL
    assert mattering([driver, cores], best(env={"NCCL_ALGO": "ring"})) == [driver]
    assert mattering([driver, cores], best(loader={"num_workers": 4})) == [cores]
    assert mattering([driver, cores], best("WITHIN_NOISE")) == [driver, cores]
