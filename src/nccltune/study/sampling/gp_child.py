"""The process in which Optuna's Gaussian process thinks: it needs torch, and the tuner has none.

    python -m nccltune.study.sampling.gp_child

Reads requests from stdin and answers on stdout, both JSON, one a line. A request has the
`direction` of the study, the `trials` that ended since the last one, those that are `running`, the
`space` to propose from, a `seed`, and how many trials are random (`startup`). It ends with its
stdin.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.samplers import GPSampler
from optuna.trial import TrialState, create_trial

from nccltune.study.quiet import optuna

Told = Mapping[str, Any]

_MOST = 400  # trials that a proposal is made from, in about a second


class Thinker:
    """A copy of the tuner's study in memory."""

    def __init__(self) -> None:
        self._trials: dict[int, Told] = {}

    def answer(self, request: Told) -> dict[str, Any]:
        """The proposal: a value for each parameter of the space; none for a random trial.

        A study and a sampler of their own for each request, so that it follows from the request's
        seed and the trials alone.
        """
        self._trials |= {told["number"]: told for told in request["trials"]}
        space = {n: json_to_distribution(text) for n, text in request["space"].items()}
        sampler = GPSampler(
            seed=request["seed"],
            n_startup_trials=request["startup"],
            warn_independent_sampling=False,
        )
        study = optuna.create_study(direction=request["direction"], sampler=sampler)
        ended = [told for _, told in sorted(self._trials.items())]
        for told in remembered(ended, request["direction"]):
            if space.keys() <= told["params"].keys():
                study.add_trial(_trial(told, space, TrialState.COMPLETE))
        for told in request["running"]:
            if space.keys() <= told["params"].keys():
                study.add_trial(_trial(told, space, TrialState.RUNNING))
        asked = study._storage.get_trial(study._storage.create_new_trial(study._study_id))
        return sampler.sample_relative(study, asked, space)


def remembered(ended: Sequence[Told], direction: str) -> list[Told]:
    """All of them, or where there are very many the best and the newest, in their order: the time
    of a proposal grows with the third power of their number.
    """
    if len(ended) <= _MOST:
        return list(ended)
    newest = len(ended) - _MOST // 4
    sign = -1 if direction == "maximize" else 1
    best = sorted(range(newest), key=lambda i: sign * ended[i]["value"])[: _MOST - _MOST // 4]
    return [ended[i] for i in sorted([*best, *range(newest, len(ended))])]


def _trial(
    told: Told, space: Mapping[str, BaseDistribution], state: TrialState
) -> optuna.trial.FrozenTrial:
    return create_trial(
        state=state,
        params={name: told["params"][name] for name in space},
        distributions=dict(space),
        value=told.get("value"),
    )


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Until there are no more requests."""
    thinker = Thinker()
    for line in requests:
        answer = {"proposal": thinker.answer(json.loads(line))}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main() -> None:
    """What libraries print goes to stderr: stdout is for answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
