"""What mattered in a search, as `nccltune show` tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_command import Command
from study_jobs import favours_buckets, run_study, space_of

from nccltune.study.store import Store

STUDIES = str(Path(__file__).parents[2] / "studies")
RECORDED = "h200x2-resnet50"


def test_the_parameters_that_mattered_are_one_line(nccltune_command: Command) -> None:
    done = nccltune_command("show", RECORDED, "--studies-dir", STUDIES)
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    begins = "What mattered (PED-ANOVA of the search's values: shares of 1, a rank and no gain): "
    assert text.count(begins) == 1
    line = text.partition(begins)[2].partition(". Written:")[0]
    named, _, others = line.partition("; ")
    shares = [float(each.split()[1]) for each in named.split(", ")]
    assert len(shares) == 4 and shares == sorted(shares, reverse=True) and sum(shares) < 1
    count, _, most = others.partition(" others, at most ")
    assert int(count) == 5 and float(most.split()[0]) <= shares[-1]


def test_json_has_every_share(nccltune_command: Command) -> None:
    done = nccltune_command("show", RECORDED, "--studies-dir", STUDIES, "--json")
    found = json.loads(done.out)["importance"]
    assert {"num_workers", "bucket_cap_mb", "NCCL_ALGO"} < found.keys()
    assert "batch_size" not in found
    assert sum(found.values()) == pytest.approx(1, abs=0.001)


def test_a_short_study_says_why_it_claims_nothing(nccltune_command: Command) -> None:
    paths = run_study(Path("studies/first"), favours_buckets, space_of(), 8)
    own = {str(t.parameters) for t in Store(paths).trials if t.stage == "search" and t.value}
    text = " ".join(nccltune_command("show", "first").out.split())
    assert (
        "What mattered: known from 16 different configurations with a value on, here are "
        f"{len(own)}." in text
    )
    assert json.loads(nccltune_command("show", "first", "--json").out)["importance"] is None


def test_the_list_of_studies_does_not_ask(nccltune_command: Command) -> None:
    [found, *_] = json.loads(nccltune_command("show", "--studies-dir", STUDIES, "--json").out)
    assert "importance" not in found
