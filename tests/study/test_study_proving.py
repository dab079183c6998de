"""NCCL's own log as the proof of a winner: asked once, kept on record, told."""

from __future__ import annotations

from pathlib import Path

from study_jobs import Asked, FormulaLauncher, space_of
from test_study_confirm import WIDE, best, confirmed

from nccltune.cli.result_lines import summary_lines
from nccltune.errors import StudyError
from nccltune.launch.protocol import Failure
from nccltune.study.proving import Proof
from nccltune.study.summary import Summary

TREE = [{"name": "tree", "source": "a/b#1", "values": {"NCCL_ALGO": "Tree"}}]
READS = frozenset({"NCCL_ALGO", "NCCL_BUFFSIZE"})


def tree_pays(asked: Asked) -> float:
    return 1.2 if "tree" in asked.env.get("NCCL_ALGO", "").split(":")[-1] else 1.0


def proved(summary: Summary) -> Proof:
    assert summary.own is not None and summary.own.faster
    assert summary.proof is not None
    return summary.proof


def probes(launcher: FormulaLauncher) -> list[dict[str, str]]:
    return [dict(group.env) for group in launcher.groups if group.probe]


def test_the_winner_and_the_baseline_are_launched_under_the_full_log_once(tmp_path: Path) -> None:
    space = space_of(presets=TREE, only=WIDE)
    summary, launcher, _ = confirmed(tmp_path / "s", tree_pays, 2, space=space, reads=READS)
    value = "ring,tree;allreduce:tree"
    assert probes(launcher) == [{}, {"NCCL_ALGO": value}]  # as a shell has it that sourced the file
    proof = proved(summary)
    assert [(t.name, t.taken, t.meaning) for t in proof.traces] == [("NCCL_ALGO", value, "taken")]
    assert [(r.bytes, str(r)) for r in proof.ran] == [
        (25 << 20, "Tree/Simple on 24 channels"),
        (1 << 20, "Tree/Simple on 24 channels"),
    ]
    assert {str(r) for r in proof.baseline} == {"Ring/Simple on 24 channels"}
    told = "\n".join(summary_lines(summary))
    assert f"NCCL's log of a launch with best.env: NCCL_ALGO={value} taken" in told
    assert (
        "gradients are reduced by Tree/Simple on 24 channels (1 MiB to 25 MiB); with the defaults "
        "Ring/Simple on 24 channels (1 MiB to 25 MiB)"
    ) in told
    written = best(summary)["verdict"]["proof"]
    assert written["variables"] == {"NCCL_ALGO": {"asked": value, "taken": value, "log": "taken"}}
    assert written["all_reduce"][0]["algorithm"] == "Tree"
    again, launcher, _ = confirmed(tmp_path / "s", tree_pays, 2, space=space, reads=READS)
    assert probes(launcher) == [] and again.proof == proof


def test_timed_launches_do_not_log_each_collective(tmp_path: Path) -> None:
    space = space_of(presets=TREE, only=WIDE)
    summary, _, _ = confirmed(tmp_path / "s", tree_pays, 2, space=space, reads=READS)
    for measurement in summary.measurements.values():
        assert measurement.nccl is not None
        assert ("choices" in measurement.nccl) == (measurement.purpose == "proof")


def test_a_proof_that_fails_proves_nothing_and_ends_nothing(tmp_path: Path) -> None:
    def fails(asked: Asked) -> float | Failure:
        return Failure("crashed", "boom") if asked.group.probe else tree_pays(asked)

    space = space_of(presets=TREE, only=WIDE)
    summary, launcher, _ = confirmed(tmp_path / "s", fails, 2, space=space, reads=READS)
    assert summary.own is not None and summary.own.faster and summary.proof is None
    assert best(summary)["verdict"]["proof"] is None and len(probes(launcher)) == 1
    assert not any("NCCL's log" in line for line in summary_lines(summary))


def test_where_the_gain_is_not_of_nccl_gradients_run_as_by_default(tmp_path: Path) -> None:
    def buckets(asked: Asked) -> float:
        return 1.2 if asked.ddp.get("bucket_cap_mb") == 50 else 1.0

    presets = [{"name": "big", "source": "a/b#1", "values": {"bucket_cap_mb": 50}}]
    space = space_of(presets=presets, only=WIDE)
    summary, _, _ = confirmed(tmp_path / "s", buckets, 2, space=space, reads=READS)
    assert proved(summary).traces == ()
    told = "\n".join(summary_lines(summary))
    assert "gradients are reduced as with the defaults: Ring/Simple on 24 channels" in told
    assert "NCCL's log of a launch" not in told


def test_where_no_rank_comes_up_for_the_proof_the_verdict_stands(tmp_path: Path) -> None:
    def gone(asked: Asked) -> float:
        if asked.group.probe:
            raise StudyError("the warm host does not start any more")
        return tree_pays(asked)

    space = space_of(presets=TREE, only=WIDE)
    summary, launcher, _ = confirmed(tmp_path / "s", gone, 2, space=space, reads=READS)
    assert summary.own is not None and summary.own.faster and summary.proof is None
    assert "export NCCL_ALGO" in summary.paths.best_env.read_text() and launcher.all_closed
