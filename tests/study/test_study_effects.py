"""Variables that NCCL never came to read: one configuration with and without, never written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from study_jobs import PARAMETERS, Asked, FormulaLauncher, measurement, run_study, space_of
from test_study_confirm import best, buckets_pay, confirmed, exports

from nccltune.cli.result_lines import summary_lines
from nccltune.space import key
from nccltune.study.effects import Effects, Silences, acting, without_trace
from nccltune.study.records import Measurement, Trial

ONLY = ("NCCL_ALGO", "NCCL_BUFFSIZE", "bucket_cap_mb")
BOTH = [
    {
        "name": "both",
        "source": "a/b#1",
        "values": {"bucket_cap_mb": 50, "NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": 8388608},
    }
]


def set_to(env: dict[str, str], taken: dict[str, str], **changes: Any) -> Measurement:
    facts = {"version": "2.28.9", "channels": 24, "environment": taken, "config": {}}
    whole = measurement(1, effective={"env": env}, nccl=facts)
    return replace(whole, **changes)


def test_a_variable_without_a_trace_did_nothing_if_the_log_is_whole() -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_NTHREADS": "256"}
    silent = set_to(env, {"NCCL_ALGO": "Ring"})
    assert without_trace(silent) == {"NCCL_NTHREADS"}
    assert without_trace(replace(silent, state="failed")) == frozenset()
    assert without_trace(replace(silent, nccl=None)) == frozenset()  # gloo
    assert silent.nccl is not None
    for cut in ({"version": None}, {"channels": None}):
        assert without_trace(replace(silent, nccl={**silent.nccl, **cut})) == frozenset()


def test_a_network_plugin_may_read_variables_without_a_word() -> None:
    silent = set_to({"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_NTHREADS": "256"}, {})
    assert without_trace(silent) == {"NCCL_IB_QPS_PER_CONNECTION", "NCCL_NTHREADS"}
    assert silent.nccl is not None
    with_plugin = {**silent.nccl, "plugins": {"net": "AWS Libfabric"}}
    assert without_trace(replace(silent, nccl=with_plugin)) == {"NCCL_NTHREADS"}


PARTS = {"NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": 8388608, "bucket_cap_mb": 50}
ENV = {"NCCL_ALGO": "ring,tree;allreduce:ring", "NCCL_BUFFSIZE": "8388608"}


def test_a_trial_is_what_acted_in_it_unless_another_setting_asks_for_the_rest() -> None:
    silent = set_to(ENV, {"NCCL_ALGO": ENV["NCCL_ALGO"]}, configuration=PARTS)
    (found,) = acting([Trial.of(silent)], [silent], space_of(only=ONLY))
    assert found.parameters == {**PARTS, "NCCL_BUFFSIZE": None}
    asks = {**PARAMETERS}
    asks["NCCL_ALGO"] = {**asks["NCCL_ALGO"], "when": {"param": {"NCCL_BUFFSIZE": "not_null"}}}
    needing = space_of(only=ONLY, parameters=asks)
    (same,) = acting([Trial.of(silent)], [silent], needing)
    assert same.parameters == PARTS  # without the size there would be no algorithm either


def test_what_is_silent_is_so_beside_the_same_other_variables() -> None:
    space = space_of(only=ONLY)
    known: list[Measurement] = []
    silences = Silences(known, space)
    assert silences.same_effect(PARTS) == PARTS
    known.append(set_to(ENV, {"NCCL_ALGO": ENV["NCCL_ALGO"]}, configuration=PARTS))
    without = {**PARTS, "NCCL_BUFFSIZE": None}
    assert silences.same_effect(PARTS) == without
    other = {**PARTS, "NCCL_BUFFSIZE": 1048576, "bucket_cap_mb": 10}  # no variable differs but it
    assert silences.same_effect(other) == {**without, "bucket_cap_mb": 10}
    for algorithm in ("Tree", None):  # there it may act
        apart = {**PARTS, "NCCL_ALGO": algorithm}
        assert silences.same_effect(apart) == apart


def test_names_of_trials_are_kept_until_more_is_known_to_do_nothing() -> None:
    space = space_of(only=ONLY)
    known: list[Measurement] = []
    effects = Effects(Silences(known, space))
    measured = set_to(ENV, {"NCCL_ALGO": ENV["NCCL_ALGO"]}, configuration=PARTS)
    trial = Trial.of(measured)
    assert effects.of_trials([trial]) == [key(PARTS)]
    other = replace(trial, parameters={**PARTS, "bucket_cap_mb": 10})  # of the same number
    assert effects.of_trials([other, trial]) == [key(other.parameters), key(PARTS)]
    known.append(measured)
    assert effects.of_trials([trial]) == [key({**PARTS, "NCCL_BUFFSIZE": None})]


def speed(asked: Asked) -> float:
    return 100.0 + 5 * (asked.ddp.get("bucket_cap_mb") == 50)


def test_configurations_of_the_same_effect_are_measured_once(tmp_path: Path) -> None:
    space = space_of(only=("NCCL_ALGO", "NCCL_BUFFSIZE"))
    every = FormulaLauncher(speed, reads=frozenset({"NCCL_ALGO", "NCCL_BUFFSIZE"}))
    run_study(tmp_path / "all", speed, space, 40, launcher=every)
    some = FormulaLauncher(speed, reads=frozenset({"NCCL_ALGO"}))
    paths = run_study(tmp_path / "some", speed, space, 40, launcher=some)
    assert len({key({**a.env}) for a in every.asked}) == len(every.asked) == 9
    # with each of three algorithms the buffer's size is set once, to see that it does nothing
    algorithms = [asked.env.get("NCCL_ALGO") for asked in some.asked]
    with_size = [asked.env.get("NCCL_ALGO") for asked in some.asked if "NCCL_BUFFSIZE" in asked.env]
    assert len(with_size) == len(set(with_size)) and len(set(algorithms)) == 3
    assert len(some.asked) < len(every.asked)
    assert paths.trials.read_text().count("\n") == len(some.asked)


def test_what_had_no_effect_is_neither_confirmed_nor_written(tmp_path: Path) -> None:
    reads = frozenset({"NCCL_ALGO"})
    space = space_of(presets=BOTH, only=ONLY)
    summary, launcher, _ = confirmed(tmp_path / "s", buckets_pay, 2, space=space, reads=reads)
    own = summary.own
    assert own is not None and own.faster and own.configuration["bucket_cap_mb"] == 50
    assert sum("NCCL_BUFFSIZE" in asked.env for asked in launcher.asked) == 1  # its trial alone
    assert best(summary)["env"] == {} and exports(summary) == []
    assert best(summary)["verdict"]["without_effect"] == ["NCCL_BUFFSIZE"]
    told = [line for line in summary_lines(summary) if "NCCL_BUFFSIZE" in line]
    assert any("had no effect here, left out: NCCL_BUFFSIZE" in line for line in told)


def test_without_a_confirmation_it_is_not_written_either(tmp_path: Path) -> None:
    reads = frozenset({"NCCL_ALGO"})
    space = space_of(presets=BOTH, only=ONLY)
    summary, _, _ = confirmed(
        tmp_path / "s", buckets_pay, 2, space=space, reads=reads, confirm=False
    )
    assert best(summary)["env"] == {"NCCL_ALGO": "ring,tree;allreduce:ring"}
    assert len(exports(summary)) == 1 and best(summary)["ddp"] == {"bucket_cap_mb": 50}
