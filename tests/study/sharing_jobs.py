"""Tuners without ranks, for the tests of several on one study. Spawned processes import this."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study_jobs import DDP, ENV, definition, measurement, space_of

from nccltune.space import canonical, key
from nccltune.study.partners import Wanted
from nccltune.study.shared_storage import open_storage
from nccltune.study.sharing import Exchange

SPACE = space_of(
    {
        "NCCL_ALGO": {**ENV, "choices": [None, "Ring", "Tree"]},
        "bucket_cap_mb": {**DDP, "choices": [None, 10, 50, 100]},
        "num_workers": {"target": "loader", "range": {"low": 0, "high": 4}, "default": None},
    }
)


def _complete(algo: str | None, cap: int | None, workers: int) -> dict[str, Any]:
    values = {"NCCL_ALGO": algo, "bucket_cap_mb": cap, "num_workers": workers}
    return canonical(values, SPACE)


BASELINE = canonical({}, SPACE)
CONFIGURATIONS = [
    found
    for algo, cap, workers in itertools.product(
        (None, "Ring", "Tree"), (None, 10, 50, 100), range(5)
    )
    if (
        found := canonical({"NCCL_ALGO": algo, "bucket_cap_mb": cap, "num_workers": workers}, SPACE)
    )
    != BASELINE
]


def join(where: str, tuner: str, **changes: Any) -> Exchange:
    return Exchange(
        open_storage(where), "s", definition(SPACE), tuner, f"folder-{tuner}", **changes
    )


def wanted(
    configuration: Mapping[str, Any], effect: str | None = None, origin: str = "sampler"
) -> Wanted:
    return Wanted(configuration, effect or key(configuration), "search", origin)


def claim(exchange: Exchange, which: int, limit: int = 100) -> int | None:
    """The configuration of that place, which is no baseline."""
    configuration = CONFIGURATIONS[which]
    return exchange.claim(wanted(configuration), limit)


def baseline(exchange: Exchange, limit: int = 100) -> int | None:
    return exchange.claim(wanted(BASELINE, origin="baseline"), limit)


def publish(exchange: Exchange, number: int, which: int | None, value: float | None) -> bool:
    configuration = BASELINE if which is None else CONFIGURATIONS[which]
    origin = "sampler" if number else "baseline"
    made = measurement(number, value, configuration=configuration, origin=origin)
    return exchange.publish(number, made)


def claim_everything(where: str, tuner: str, limit: int, order: int, out: Path) -> None:
    """A tuner that tries 28 configurations in turn, as long as there is room. Writes the numbers
    and the configurations that it got.
    """
    exchange = join(where, tuner)
    lines = []
    for place in range(28):
        which = (place * 5 + order) % 28
        number = claim(exchange, which, limit)
        if number is not None:
            lines.append(f"{number} {which}\n")
            assert publish(exchange, number, which, 100.0 + which)
    exchange.close()
    out.write_text("".join(lines))


def claim_and_die(where: str, tuner: str, which: int) -> None:
    """Is killed with a claim open."""
    exchange = join(where, tuner)
    assert claim(exchange, which) is not None
    os.kill(os.getpid(), 9)
