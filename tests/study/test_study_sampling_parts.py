"""Parts of the guided sampler: what is remembered, where it climbs, what fails, pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nccltune.study.sampling.failing import ChanceToRun
from nccltune.study.sampling.guide import Guide, Knob
from nccltune.study.sampling.memory import Memory, Observation
from nccltune.study.sampling.model import Floats, Levels, Priors, fit
from nccltune.study.sampling.neighbours import climbed, doubles


def test_a_growing_history_is_remembered_as_if_read_at_once() -> None:
    rng = np.random.default_rng(0)
    history: list[Observation] = []
    memory = Memory()
    for _ in range(400):
        code = (int(rng.integers(3)), int(rng.integers(4)))
        history.append(Observation(code, None if rng.random() < 0.1 else float(rng.normal())))
        memory.catch_up(history)
    whole = Memory()
    whole.catch_up(list(history))
    assert memory.good == whole.good and memory.bad == whole.bad
    for code, mean in memory.means.items():
        values = [o.value for o in history if o.code == code and o.value is not None]
        assert np.isclose(mean, np.mean(values)) and memory.times[code] == len(values)
    assert memory.remembered((0, 0)) == whole.remembered((0, 0))


def test_another_history_is_read_from_its_start() -> None:
    memory = Memory()
    memory.catch_up([Observation((0,), 1.0), Observation((1,), 2.0)])
    memory.catch_up([Observation((2,), 3.0), Observation((1,), None), Observation((2,), 5.0)])
    assert memory.means == {(2,): 4.0} and memory.bad == [(1,)]


def test_a_guide_asked_of_two_histories_answers_each() -> None:
    guide = Guide([Knob("a", (0, 1, 2), 0)])
    first = [Observation((0,), 7.0), Observation((1,), 7.5)]
    other = [Observation((0,), 7.0), Observation((2,), 7.5)]
    assert guide.answer(first) == (1,) and guide.answer(other) == (2,)
    first += [Observation((2,), 9.0)]
    assert guide.answer(first) == (2,)


def test_a_climb_reaches_the_top_or_its_limit() -> None:
    sizes = np.array([5, 5, 5, 5])
    start = np.zeros(4, dtype=np.intp)

    def score(codes: np.ndarray) -> Floats:
        return np.asarray(codes.sum(axis=1), dtype=np.float64)

    assert climbed(start, sizes, score).sum(axis=1).max() == 16
    near = climbed(start, sizes, score, changes=2)
    assert near.sum(axis=1).max() == 8 and (near != 0).sum(axis=1).max() == 2


@pytest.mark.parametrize(("sizes", "count"), [((1, 1), 0), ((2, 2), 1), ((3, 1, 4), 6)])
def test_doubles_are_all_that_differ_in_two(sizes: tuple[int, ...], count: int) -> None:
    start = np.zeros(len(sizes), dtype=np.intp)
    rows = doubles(start, np.array(sizes), np.random.default_rng(0))
    every = set(itertools.product(*map(range, sizes)))
    assert {tuple(row) for row in rows.tolist()} == {
        row for row in every if sum(v != 0 for v in row) == 2
    }
    assert len(rows) == count


def test_of_very_many_doubles_some_are_drawn() -> None:
    rows = doubles(np.zeros(12, dtype=np.intp), np.array([9] * 12), np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == len(rows) == 1200
    assert ((rows != 0).sum(axis=1) == 2).all()


def test_what_shares_values_with_failures_is_likelier_to_fail() -> None:
    good, bad = [(0, 0, 0), (0, 1, 0), (1, 0, 0)], [(1, 1, 0), (1, 1, 1)]
    runs = ChanceToRun(good, bad, (0, 0, 0))
    both, one, none = runs.of(np.array([[1, 1, 2], [1, 0, 2], [0, 0, 2]]))
    assert both < 0.5 < one < none <= 1
    assert (ChanceToRun(good, [], (0, 0, 0)).of(np.array([[1, 1, 2]])) == 1).all()


def test_pairs_of_parameters_that_act_together_are_told_from_those_that_do_not() -> None:
    """Two of four parameters act, and only together: what is expected of a pair that was not
    measured is much where one of them takes part, and little between the others.
    """
    levels = [Levels(3, 0, (None, None, None))] * 4
    codes = np.array(list(itertools.product(range(3), repeat=4)), dtype=np.intp)
    together = {(1, 1): 0.3, (1, 2): -0.3, (2, 1): -0.3}
    known = codes[[tuple(c[:2]) != (2, 2) and tuple(c[2:]) != (2, 2) for c in codes]]
    values = np.array([7 + together.get((int(c[0]), int(c[1])), 0.0) for c in known])
    values = values + np.random.default_rng(0).normal(0, 0.01, len(values))
    model = fit(levels, known, np.arange(len(known)), values, Priors((0.1,) * 4))
    spread = model.predict(np.array([[2, 2, 0, 0], [0, 0, 2, 2]]))[1]
    assert spread[0] > 3 * spread[1]
