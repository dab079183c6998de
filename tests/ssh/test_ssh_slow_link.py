"""What pays over a slow link and not within a machine: two network namespaces, and between them a
link of 100 Mbit/s, over which the gradients of a step take about as long as its backward pass. With
a bucket for each layer they travel beside it; the default is one bucket, which travels after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ssh_search import Search
from sshd import Network, over_a_link, why_no_namespaces

from nodes_search import ONE
from running import Cli

pytestmark = [pytest.mark.ranks, pytest.mark.ssh]

SPACE = """
version: 1
parameters:
  bucket_cap_mb: {target: ddp, choices: [null, 0.1], default: null}
"""
JOB = (*("--model", "verdictjobs:Layered", "--space", "buckets.yaml"), *ONE)
SMALL = 0.1
CORE = {"OMP_NUM_THREADS": "1"}
"""What each rank would have to itself on nodes of their own."""


@pytest.fixture(scope="module")
def link() -> Iterator[Network]:
    if reason := why_no_namespaces():
        pytest.skip(reason)
    with over_a_link(100) as running:
        yield running


@pytest.fixture
def slow(link: Network, cli: Cli) -> Search:
    return searching(link, cli)


def searching(network: Network, cli: Cli) -> Search:
    (cli.folder / "buckets.yaml").write_text(SPACE)
    return Search(network, cli)


def best(search: Search) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((search.study / "best.yaml").read_text())
    return found


def test_over_a_slow_link_small_buckets_win(slow: Search) -> None:
    run = slow.run(*JOB, "--trials", "2", "--confirm-launches", "0", launcher="ssh", **CORE)
    assert run.returncode == 0, run.stderr
    found = {m["configuration"]["bucket_cap_mb"]: m["value"] for m in slow.measurements()}
    assert found[SMALL] > 1.1 * found[None], run.stderr  # 1.6 to 1.8 times, by one launch of each
    slow.assert_nothing_left()


@pytest.mark.slow
def test_the_verdict_confirms_it_there_and_not_within_a_machine(
    slow: Search, running_network: Network, tmp_path: Path, cache: Path
) -> None:
    # what the others on this machine do must not decide that nothing is to be searched
    options = ("--trials", "2", "--search-anyway")
    run = slow.run(*JOB, *options, launcher="ssh", **CORE)
    assert run.returncode == 0, run.stderr
    found = best(slow)
    assert found["verdict"]["word"] == "FASTER", run.stdout
    assert found["ddp"] == {"bucket_cap_mb": SMALL}
    slow.assert_nothing_left()
    inside = tmp_path / "inside"
    inside.mkdir()
    near = searching(running_network, Cli(inside, cache))
    run = near.run(*JOB, *options, launcher="ssh", **CORE)
    assert run.returncode == 0, run.stderr
    assert best(near)["ddp"] == {}, run.stdout
    near.assert_nothing_left()
