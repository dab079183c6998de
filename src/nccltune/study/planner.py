"""What to measure next: the baseline, presets, the sampler's proposals, then larger batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from nccltune.space import ResolvedSpace, Value, canonical, changes, violation
from nccltune.study.batch_sizes import FEWEST_FOR_BATCH, Memory, foreseen_memory, larger_batches
from nccltune.study.budget import Budget
from nccltune.study.effects import Effects, Silences
from nccltune.study.partners import Elsewhere
from nccltune.study.proposals import Proposal, Proposer
from nccltune.study.records import AGAIN, Stage, Trial, best_of

_BATCH_SHARE = 4  # at most one trial in so many is at another batch size than the user's
_LOOKAHEAD = 4  # proposals that may wait for a worker group that suits them
_SLOWER = 0.15  # a larger batch that loses so much is past the best one, noise or not
ENOUGH = 0.1
"""A search is over when the chance that more trials gain more than noise hides is below that."""
_ATTEMPTS = 300  # proposals in a row that are illegal or known: then the space is used up


@dataclass(frozen=True)
class Next:
    """A configuration to measure, where it came from, and the sampler's proposal if it did."""

    configuration: Mapping[str, Value]
    stage: Stage
    origin: str
    proposal: Proposal | None = None


@dataclass(frozen=True)
class Earlier:
    """What was good before, and where."""

    origin: str
    values: Mapping[str, Value]


class Planner:
    """Pure in the records: the same trials lead to the same next step, resumed or not, but for the
    sampler's draws.
    """

    def __init__(
        self,
        space: ResolvedSpace,
        proposer: Proposer,
        batch_size: int,
        memory: Memory,
        silences: Silences | None = None,
        earlier: Sequence[Earlier] = (),
    ) -> None:
        """`silences`: what is known to do nothing. Configurations of the same effect are one.
        `earlier` are tried before everything else.
        """
        self._earlier = earlier
        self._effects = Effects(silences or Silences((), space))
        self._space, self._proposer, self._batch_size = space, proposer, batch_size
        self._memory = memory
        self._larger = larger_batches(space, batch_size)
        self._cheap: Callable[[Mapping[str, Value]], bool] = bool
        self._waiting: dict[Stage, list[Next]] = {"search": [], "batch": []}
        self._held: dict[Stage, dict[str, Next]] = {"search": {}, "batch": {}}
        self._used_up: set[Stage] = set()
        self._fruitless: dict[Stage, tuple[int, frozenset[str]]] = {}
        self._left_out: frozenset[str] = frozenset()
        self._threshold: float | None = None
        self.settled: float | None = None
        """The chance that more trials at the user's batch size gain more than noise hides, where
        the search ended because of it.
        """
        self.elsewhere: Sequence[Elsewhere] = ()
        """What other tuners measure now."""
        self.rejected: dict[int, str] = {}
        """Batch sizes that are not tried, and why."""

    def next(
        self, trials: Sequence[Trial], budget: Budget, cheap: Callable[[Mapping[str, Value]], bool]
    ) -> Next | None:
        """None when nothing new can be proposed. Of some proposals of the sampler the first that
        is `cheap` (needs no new worker group) comes first; none waits for ever.
        """
        self._cheap = cheap
        if not trials:
            return Next(canonical({}, self._space), "search", "baseline")
        order = ["batch", "search"] if self._batch_turn(trials, budget) else ["search"]
        for stage in order:
            found = self._batch(trials) if stage == "batch" else self._search(trials)
            if found is not None:
                return found
        # the user's own batch size is used up: larger ones may still be open within their share
        total = budget.trials if self._left_out else len(trials) + 1
        nothing_else = all(p.target == "batch" for p in self._space.parameters)
        room = self._batch_room(trials, total) > 0 or (self._larger and nothing_else)
        return self._batch(trials) if room else None

    def leave_out(self, names: Collection[str]) -> None:
        """Vary these no more at the user's own batch size."""
        self._left_out = frozenset(names)
        if names and not self._proposer.leave_out(names, "search"):
            self._used_up.add("search")

    def expect(self, gains: Mapping[str, float]) -> None:
        """The most that parameters can win, as ratios above 1, by where a step's time goes."""
        if (sampler := self._proposer.guided("search")) is not None:
            sampler.expect(gains)

    def know_noise(self, baseline: Sequence[tuple[float, int]], threshold: float | None) -> None:
        """What launches of the baseline made (samples/s, number of the launch), and the smallest
        gain that is of use; None: the search goes on until its trials are spent.
        """
        self._threshold = threshold
        if (sampler := self._proposer.guided("search")) is not None:
            values = self._proposer.as_params(self._space.baseline, "search")
            for speed, launch in baseline:
                sampler.repeated(values, speed, launch)

    def tell(self, trial: Trial, following: Next | None) -> None:
        """What came of it; None: another tuner has measured the trial."""
        if following is None:
            held = self._held[trial.stage].get(self.effect(trial.parameters))
            if held is not None and held.configuration == trial.parameters:
                following = self._held[trial.stage].pop(self.effect(trial.parameters))
        self._proposer.tell(trial, None if following is None else following.proposal)

    def hold(self, following: Next) -> None:
        """Another tuner is at it: it is proposed again only if nothing comes of it there."""
        if following.proposal is None:
            return  # what the sampler did not propose is planned anew anyway
        name, held = self.effect(following.configuration), self._held[following.stage]
        if name in held or following.proposal.again:
            self._proposer.withdraw(following.proposal)
        else:
            held[name] = following

    def _busy(self) -> frozenset[str]:
        return frozenset(self.effect(each.configuration) for each in self.elsewhere)

    # The stage at the user's own batch size.

    def _search(self, trials: Sequence[Trial]) -> Next | None:
        guided = self._proposer.guided("search") is not None  # it has the presets itself
        if (self._earlier or not guided) and (found := self._known_good(trials, guided)):
            return found
        if self._threshold is not None and "search" not in self._used_up:
            chance = self._proposer.chance("search", self._threshold)
            if chance < ENOUGH:
                self.settled = chance
                self._used_up.add("search")
        return self._sampled("search", {}, trials, None)

    def _known_good(self, trials: Sequence[Trial], guided: bool) -> Next | None:
        """What was good before, then the presets."""
        known = {*self._effects.of_trials(trials), *self._busy()}
        points = [(each.origin, self._complete(each.values)) for each in self._earlier]
        for preset in () if guided else self._space.presets:
            configuration = self._complete(preset.values)
            if not self._left_out & changes(configuration, self._space.baseline).keys():
                points.append((f"preset {preset.name}", configuration))
        for origin, configuration in points:
            legal = violation(configuration, self._space) is None
            if legal and self.effect(configuration) not in known:
                return Next(configuration, "search", origin)
        return None

    def _sampled(
        self,
        stage: Stage,
        held: Mapping[str, Value],
        trials: Sequence[Trial],
        batches: frozenset[int] | None,
    ) -> Next | None:
        """The cheapest of the sampler's next few proposals; the oldest, where none is cheap."""
        own = [trial for trial in trials if trial.stage == stage]
        measured = dict(zip(self._effects.of_trials(own), (t.value for t in own), strict=True))
        beside = (len(trials), self._busy())
        waiting = self._waiting[stage] = self._still_new(stage, measured)
        while stage not in self._used_up and not any(self._cheap(n.configuration) for n in waiting):
            most = 1 if self._proposer.guided(stage) else _LOOKAHEAD
            if len(waiting) >= most or self._fruitless.get(stage) == beside:
                break
            found = self._drawn(stage, held, measured, batches)
            if found is None:
                self._fruitless[stage] = beside
                if not self.elsewhere:  # what is lost there would be open here
                    self._used_up.add(stage)
                break
            waiting.append(found)
        if not waiting:
            return None
        chosen = next((n for n in waiting if self._cheap(n.configuration)), waiting[0])
        waiting.remove(chosen)
        return chosen

    def _drawn(
        self,
        stage: Stage,
        held: Mapping[str, Value],
        measured: Mapping[str, float | None],
        batches: frozenset[int] | None,
    ) -> Next | None:
        """The sampler's next proposal that is legal and new, with one of these batch sizes. What is
        not is told at once and costs nothing.
        """
        waiting = {self.effect(n.configuration) for n in self._waiting[stage]}
        busy = self._busy()
        for _ in range(_ATTEMPTS):
            proposal = self._proposer.ask(stage)
            configuration = self._complete({**held, **proposal.values})
            name = self.effect(configuration)
            fits = batches is None or configuration.get("batch_size") in batches
            if not fits or violation(configuration, self._space) is not None:
                self._proposer.reject(proposal, None)
            elif name in busy:
                self.hold(Next(configuration, stage, self._proposer.origin(proposal), proposal))
            elif name in measured and proposal.again and measured[name] is not None:
                return Next(configuration, stage, AGAIN, proposal)
            elif name in measured:
                self._proposer.reject(proposal, measured[name])
            elif name in waiting:
                self._proposer.withdraw(proposal)
            else:
                return Next(configuration, stage, self._proposer.origin(proposal), proposal)
        return None

    def close(self) -> None:
        """Take back the proposals that still wait, so that none is left open in the journal."""
        for stage, waiting in self._waiting.items():
            for following in (*waiting, *self._held[stage].values()):
                if following.proposal is not None:
                    self._proposer.withdraw(following.proposal)
            waiting.clear()
            self._held[stage].clear()
        self._proposer.close()

    def _still_new(self, stage: Stage, measured: Mapping[str, float | None]) -> list[Next]:
        """What waits, and what others were at and are no more, without what is like something
        measured since, or like another that waits: a variable turned out to do nothing here.
        """
        kept: dict[str, Next] = {}
        held, busy = tuple(self._held[stage].values()), self._busy()
        self._held[stage].clear()
        for following in (*held, *self._waiting[stage]):
            name = self.effect(following.configuration)
            assert following.proposal is not None  # nothing else waits
            if name in measured and not following.proposal.again:
                self._proposer.reject(following.proposal, measured[name])
            elif name in busy:
                self.hold(following)
            elif name in kept:
                self._proposer.withdraw(following.proposal)
            else:
                kept[name] = following
        return list(kept.values())

    def effect(self, configuration: Mapping[str, Value]) -> str:
        """Equal for configurations with the same effect."""
        return self._effects.of(configuration)

    def _complete(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return canonical(values, self._space)

    # The stage with larger batches, from the winner on.

    def _batch_turn(self, trials: Sequence[Trial], budget: Budget) -> bool:
        if not self._larger or budget.trials < FEWEST_FOR_BATCH:
            return False
        if self._batch_room(trials, budget.trials) <= 0:
            return False
        own = self._count("search", trials)
        by_trials = own >= budget.trials - budget.trials // _BATCH_SHARE
        # Where time ends the search before the trials do, larger batches get their share of it.
        by_time = budget.share_spent() >= 1 - 1 / _BATCH_SHARE
        return by_trials or (by_time and self._batch_room(trials, len(trials) + 1) > 0)

    def _count(self, stage: Stage, trials: Sequence[Trial]) -> int:
        """Trials of a stage, those that others measure now included."""
        own = sum(trial.stage == stage for trial in trials)
        return own + sum(each.stage == stage for each in self.elsewhere)

    def _batch_room(self, trials: Sequence[Trial], total: int) -> int:
        done = self._count("batch", trials)
        return total // _BATCH_SHARE - done if self._larger else 0

    def _batch(self, trials: Sequence[Trial]) -> Next | None:
        """First each larger batch in turn with the winner's settings, as far as memory goes; then
        loader settings and batch sizes together, which depend on each other.
        """
        winner = best_of(list(trials), "search")
        assert winner is not None  # the baseline is complete
        tried = {t.parameters.get("batch_size"): t for t in trials if t.stage == "batch"}
        possible = self._fitting(winner, tried, self._too_large(winner, trials))
        for size in possible:
            if size not in tried:
                configuration = self._complete({**winner.parameters, "batch_size": size})
                legal = violation(configuration, self._space) is None
                if legal and self.effect(configuration) not in self._busy():
                    return Next(configuration, "batch", "larger batch")
        if not any(t.stage == "batch" and t.state == "complete" for t in trials):
            return None
        return self._sampled("batch", winner.parameters, trials, frozenset(possible))

    def _too_large(self, winner: Trial, trials: Sequence[Trial]) -> int | None:
        """The smallest batch size at which training is much slower than at a smaller one."""
        fastest: dict[int, float] = {self._batch_size: winner.value or 0.0}
        for trial in trials:
            size = trial.parameters.get("batch_size")
            if trial.stage == "batch" and trial.value is not None and isinstance(size, int):
                fastest[size] = max(trial.value, fastest.get(size, 0.0))
        best_size = best = 0.0
        for size, value in sorted(fastest.items()):
            if value < (1 - _SLOWER) * best:
                for larger in self._larger:
                    if larger > size and larger not in fastest:
                        self.rejected[larger] = (
                            f"batch size {larger} is not tried: {size} is slower than {best_size} "
                            f"already ({value:.4g} and {best:.4g} samples/s)"
                        )
                return size
            if value > best:
                best_size, best = size, value
        return None

    def _fitting(
        self, winner: Trial, tried: Mapping[Value, Trial], too_large: int | None
    ) -> list[int]:
        """The larger sizes that may fit: below the smallest that ran out of memory or was too slow,
        and not foreseen to need more than there is.
        """
        full = [s for s, t in tried.items() if t.failure == "out_of_memory" and isinstance(s, int)]
        full += [] if too_large is None else [too_large]
        below = [size for size in self._larger if not full or size < min(full)]
        points = {self._batch_size: self._memory.peak(winner)}
        points |= {s: self._memory.peak(t) for s, t in tried.items() if isinstance(s, int)}
        measured = {size: peak for size, peak in points.items() if peak is not None}
        fitting = []
        for size in below:
            needed = foreseen_memory(measured, size)
            if size in tried or not self._memory.available or needed <= self._memory.available:
                fitting.append(size)
            else:
                self.rejected[size] = (
                    f"batch size {size} is not tried: it would need about {needed / 2**30:.0f} GiB "
                    f"of a GPU's {self._memory.available / 2**30:.0f} GiB"
                )
        return fitting
