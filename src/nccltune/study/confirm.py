"""After the search: is the winner faster than the defaults, and which of its settings pay?

Everything here is decided from the speeds of fresh launches that are used for nothing else. The
same code runs while these are measured, when an interrupted confirmation goes on, and when a study
is shown: what differs is only where a launch's speed comes from.
"""

from __future__ import annotations

import hashlib
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nccltune.space import ResolvedSpace, Value, canonical, changes, key, violation
from nccltune.stats.noise import noise_threshold
from nccltune.stats.verdict import FEWEST, Block, Verdict, baseline_first, settle
from nccltune.study.blocks import DROPPING, FILES, CandidateFailed, DropTest, Launch, Speeds
from nccltune.study.records import Stage, Trial

FINALISTS = 3
ROUNDS = 3  # launches of each finalist
_FILES = "best.env and best.yaml"
_FILES_BLOCKS = 2
_FILES_NOISE = 2  # thresholds that one pair of launches may fall short: 3 standard deviations
_GROUPS = {"env": "NCCL", "ddp": "DDP", "loader": "loader"}


@dataclass(frozen=True)
class Answer:
    """What confirmation found at one batch size.

    `verdict` is of `configuration` against the baseline; None where nothing was confirmed, and
    `trial` is None where the search had found nothing faster. `whole` is the verdict on the
    winner with all its settings, where some were dropped; `shares` what each kept setting or group
    carries (the speed with it over the speed without it), `dropped` the same of those that do not
    pay. `failed` are finalists that failed.
    """

    configuration: Mapping[str, Value]
    trial: int | None = None
    verdict: Verdict | None = None
    whole: Verdict | None = None
    shares: Mapping[str, Verdict] = field(default_factory=dict)
    dropped: Mapping[str, Verdict] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    files: Block | None = None
    """Samples/s of plain torchrun launches, without and with the best files. None where there was
    no time for them, or plain commands do not work here.
    """

    @property
    def faster(self) -> bool:
        return self.verdict is not None and self.verdict.word == "FASTER"

    @property
    def settled(self) -> bool:
        """Whether it is a verdict, or nothing is there to confirm."""
        launches = 0 if self.verdict is None else self.verdict.launches
        return self.trial is None or launches >= FEWEST


@dataclass(frozen=True)
class Confirmation:
    """`noise` are the speeds of the baseline's launches in the search, `limit` the most launches
    of each side in a comparison, `seed` the study's.
    """

    space: ResolvedSpace
    trials: Sequence[Trial]
    noise: Sequence[float]
    limit: int
    speeds: Speeds
    seed: int = 0

    @property
    def baseline(self) -> Mapping[str, Value]:
        return self.trials[0].parameters

    def own_batch(self) -> Answer:
        """The answer at the user's own batch size."""
        failed: list[int] = []
        while left := self._finalists(failed):
            winner = left[0] if len(left) == 1 else self._best_of(left, failed)
            if winner is None:
                continue  # all of them have failed
            try:
                return self.of_trial(winner, tuple(failed))
            except CandidateFailed:
                failed.append(winner.number)
        return Answer(self.baseline, failed=tuple(failed))

    def _finalists(self, failed: Sequence[int]) -> list[Trial]:
        sound = [trial for trial in self.trials if trial.number not in failed]
        return finalists(sound, self.space, self.noise)

    def larger_batch(self, own: Answer, best: Trial) -> Answer | None:
        """The answer for the fastest larger batch, with the settings that the user's own batch has
        kept; None when it cannot be measured.
        """
        at_batch = {
            p.name for p in self.space.parameters if p.target in ("batch", "loader")
        } & best.parameters.keys()
        kept = own.configuration if own.faster else self.baseline
        mixed = {**kept, **{name: best.parameters[name] for name in at_batch}}
        configuration = canonical(mixed, self.space)
        if violation(configuration, self.space) is not None:
            configuration = dict(best.parameters)
        try:
            verdict = self._against_baseline("larger batch", configuration, best.number, "batch")
        except CandidateFailed:
            return Answer(configuration, best.number, failed=(best.number,))
        return Answer(configuration, best.number, verdict)

    def _best_of(self, several: Sequence[Trial], failed: list[int]) -> Trial | None:
        """The finalist whose fresh launches are fastest, the first when these cannot be had, None
        when none is left. Those that fail are added to `failed`.
        """
        of = _digest(*(trial.parameters for trial in several))
        speeds: dict[int, list[float]] = {trial.number: [] for trial in several}
        for block in range(ROUNDS):
            order = list(several)
            random.Random(f"{self.seed} {of} {block}").shuffle(order)
            for trial in (each for each in order if each.number in speeds):
                side = str(trial.number)
                launch = Launch(
                    "finalists", block, side, trial.parameters, "search", trial.number, ROUNDS, of
                )
                try:
                    found = self.speeds([launch])
                except CandidateFailed:
                    failed.append(trial.number)
                    del speeds[trial.number]
                    continue
                if found is None:
                    return next(each for each in several if each.number in speeds)
                speeds[trial.number] += found
        best = max(speeds, key=lambda number: statistics.median(speeds[number]), default=None)
        return next((trial for trial in several if trial.number == best), None)

    def of_trial(self, winner: Trial, failed: tuple[int, ...] = ()) -> Answer:
        """The answer for one trial. Raises CandidateFailed when a launch of it does."""
        answer = self._measured(winner, failed)
        return self._through_files(answer) if answer.faster else answer

    def _through_files(self, answer: Answer) -> Answer:
        """The last block: what is promised is the files, and what they do must not contradict it.
        One block may be bad luck, a second that is no better is not.
        """
        assert answer.verdict is not None and answer.verdict.ratio is not None
        assert answer.trial is not None
        noise = (1 + (answer.verdict.threshold or 0.0)) ** _FILES_NOISE
        why, short = "", None
        for number in range(_FILES_BLOCKS):
            try:
                found = self._block(
                    *(FILES, self.baseline, answer.configuration, answer.trial, "search"),
                    *(_FILES_BLOCKS, number),
                )
            except CandidateFailed:
                why, short = f"plain torchrun launches with {_FILES} failed", None
                continue
            if found is None and (short is not None or not why):
                return replace(answer, files=short)  # once may be bad luck: the figures are told
            if found is None:
                break
            gain = found[1] / found[0]
            if gain >= answer.verdict.ratio / noise:
                return replace(answer, files=found)
            short = found
            why = (
                f"plain torchrun launches gained {100 * (gain - 1):+.1f}% from {_FILES}, where "
                f"{100 * (answer.verdict.ratio - 1):+.1f}% was measured"
            )
        inconclusive = replace(answer.verdict, word="INCONCLUSIVE", reason=why)
        return replace(answer, verdict=inconclusive)

    def _measured(self, winner: Trial, failed: tuple[int, ...]) -> Answer:
        whole = self._against_baseline("winner", winner.parameters, winner.number)
        if whole.launches == 0:
            return Answer(winner.parameters, winner.number, failed=failed)
        answer = Answer(winner.parameters, winner.number, whole, failed=failed)
        if not answer.faster:
            return answer
        try:
            reduced, shares, dropped = self._reduced(winner)
        except CandidateFailed as error:
            if error.side == "candidate":
                raise  # all settings together, which is what would be promised
            return answer
        if not dropped or not changes(reduced, self.space.baseline):
            return Answer(winner.parameters, winner.number, whole, None, shares, {}, failed)
        try:
            again = self._against_baseline("reduced", reduced, winner.number)
        except CandidateFailed:
            return answer
        if again.word != "FASTER" or self._behind(again, whole):
            return answer  # together they did pay, or it is not known
        shares = shares or self._only_share(reduced, again)
        return Answer(reduced, winner.number, again, whole, shares, dropped, failed)

    def _only_share(self, kept: Mapping[str, Value], verdict: Verdict) -> dict[str, Verdict]:
        """One setting or group that is left carries all that there is: its share is the gain."""
        groups = self._groups(kept)
        if len(groups) != 1:
            return {}
        [(group, names)] = groups.items()
        return {names[0] if len(names) == 1 else group: verdict}

    def _behind(self, reduced: Verdict, whole: Verdict) -> bool:
        """Whether the reduced settings are slower than all of them by more than noise hides."""
        assert reduced.ratio is not None and whole.ratio is not None
        return reduced.ratio * (1 + (whole.threshold or 0.0)) < whole.ratio

    def _against_baseline(
        self, name: str, configuration: Mapping[str, Value], trial: int, stage: Stage = "search"
    ) -> Verdict:
        measure = partial(self._block, name, self.baseline, configuration, trial, stage, self.limit)
        return settle(measure, [self.noise], self.limit)

    def _reduced(
        self, winner: Trial
    ) -> tuple[Mapping[str, Value], dict[str, Verdict], dict[str, Verdict]]:
        """Without what does not pay: first whole groups, then single settings of those that stay.
        Returns the configuration, what the kept ones carry, and what the dropped ones did.
        """
        current: Mapping[str, Value] = winner.parameters
        shares: dict[str, Verdict] = {}
        dropped: dict[str, Verdict] = {}
        groups = self._groups(current)
        if sum(map(len, groups.values())) < 2:
            return current, shares, dropped  # one setting: what it carries is the whole gain
        tests = [(name, names) for name, names in groups.items()] if len(groups) > 1 else []
        for name, names in tests:
            current = self._without(name, names, current, winner, shares, dropped)
        for name, names in groups.items():
            if name in dropped or len(names) < 2:
                continue
            for single in names:
                if single in changes(current, self.space.baseline):
                    current = self._without(single, [single], current, winner, shares, dropped)
        return current, shares, dropped

    def _without(
        self,
        name: str,
        names: Sequence[str],
        current: Mapping[str, Value],
        winner: Trial,
        shares: dict[str, Verdict],
        dropped: dict[str, Verdict],
    ) -> Mapping[str, Value]:
        """The configuration without these settings, if they do not pay; else as it is."""
        reset = {each: self.space.baseline[each] for each in names}
        reduced = canonical({**current, **reset}, self.space)
        if violation(reduced, self.space) is not None or not changes(reduced, current):
            return current
        if not changes(reduced, self.space.baseline):
            return current  # the last one: the confirmation of what is left says what it carries
        test = DropTest(
            partial(self._block, f"{DROPPING}{name}", reduced, current, winner.number, "search"),
            noise_threshold([self.noise]),
        )
        try:
            found = settle(test, [self.noise], FEWEST)
        except CandidateFailed as error:
            if error.side == "baseline":
                return current  # what fails without them needs them
            whole = current == winner.parameters
            raise CandidateFailed(str(error), "candidate" if whole else "reduced") from error
        if found.word == "FASTER":
            shares[name] = found
        if found.word == "FASTER" or (found.launches < FEWEST and not test.over):
            return current  # what is not known stays: the whole is confirmed with it
        dropped[name] = found
        return reduced

    def _groups(self, configuration: Mapping[str, Value]) -> dict[str, list[str]]:
        """The settings that differ from the baseline, by what they are set in."""
        changed = changes(configuration, self.space.baseline)
        found: dict[str, list[str]] = {}
        for parameter in self.space.parameters:
            if parameter.name in changed and parameter.target in _GROUPS:
                found.setdefault(_GROUPS[parameter.target], []).append(parameter.name)
        return found

    def _block(
        self,
        name: str,
        baseline: Mapping[str, Value],
        candidate: Mapping[str, Value],
        trial: int,
        stage: Stage,
        limit: int,
        block: int,
    ) -> Block | None:
        """One launch of each side, in random order."""
        of = _digest(baseline, candidate)
        sides = [("baseline", baseline), ("candidate", candidate)]
        if not baseline_first(f"{self.seed} {name} {of}", block):
            sides.reverse()
        launches = []
        for side, configuration in sides:
            number = 0 if configuration == self.baseline else trial
            launches.append(Launch(name, block, side, configuration, stage, number, limit, of))
        found = self.speeds(launches)
        if found is None:
            return None
        speeds = dict(zip((launch.side for launch in launches), found, strict=True))
        return speeds["baseline"], speeds["candidate"]


def _digest(*configurations: Mapping[str, Value]) -> str:
    text = "\n".join(key(configuration) for configuration in configurations)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def finalists(trials: Sequence[Trial], space: ResolvedSpace, noise: Sequence[float]) -> list[Trial]:
    """The fastest at the user's batch size that are faster than the baseline's launches, distinct
    in two settings at least, and not behind the first by more than noise could hide.
    """
    complete = [t for t in trials if t.stage == "search" and t.state == "complete" and t.value]
    if not complete:
        return []
    usual = statistics.median(noise) if noise else (trials[0].value or 0.0)
    threshold = noise_threshold([noise]) if len(noise) > 1 else 0.0
    faster = [
        t for t in complete if (t.value or 0.0) > usual and changes(t.parameters, space.baseline)
    ]
    faster.sort(key=lambda t: -(t.value or 0.0))
    chosen: list[Trial] = []
    for trial in faster:
        close = (trial.value or 0.0) >= (faster[0].value or 0.0) / (1 + 2 * threshold)
        apart = all(len(changes(trial.parameters, c.parameters)) >= 2 for c in chosen)
        if len(chosen) < FINALISTS and apart and close:
            chosen.append(trial)
    return chosen
