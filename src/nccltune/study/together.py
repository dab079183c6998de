"""A study's records and results, where several tuners work on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nccltune.errors import UsageError
from nccltune.study.definition import Definition
from nccltune.study.folder import StudyPaths, has_records, write_text
from nccltune.study.partners import Confirmer, Elsewhere, Wanted
from nccltune.study.records import Measurement, Trial
from nccltune.study.store import Store

if TYPE_CHECKING:
    from nccltune.launch.parts import Followers
    from nccltune.study.shared_storage import Shared
    from nccltune.study.sharing import Exchange

_FILES = ("best_env", "best_yaml", "best_batch_yaml")


@dataclass(frozen=True)
class Sharing:
    """Where a study is shared, and its name there. `followers` are the tuners that this one has
    started, `led` says that another one has started it.
    """

    shared: Shared
    name: str
    followers: Followers | None = None
    led: bool = False


class Team:
    """This tuner among others: its records come to hold all trials of the study."""

    def __init__(
        self,
        exchange: Exchange,
        store: Store,
        followers: Followers | None = None,
        *,
        led: bool = False,
    ) -> None:
        """`followers`, `led`: see `Sharing`. Raises UsageError when the storage is not the one that
        the records were shared in.
        """
        self._exchange, self._store = exchange, store
        self.followers, self._led = followers, led
        exchange.refuse_other_trials(self._known())
        self._launches: dict[tuple[str, int], int] = {}
        self.confirms = False
        """Whether the others leave it to this tuner to confirm the result."""

    @property
    def tuner(self) -> str:
        return self._exchange.tuner

    def _known(self) -> set[int]:
        return {trial.number for trial in self._store.trials}

    def news(self) -> Sequence[str]:
        """See `Partners`."""
        return () if self.followers is None else tuple(self.followers.news())

    def catch_up(self) -> Sequence[Trial]:
        """See `Partners`."""
        found: list[Trial] = []
        known = self._known()
        for news in self._exchange.news(known):
            if news.trial != 0 and 0 not in known:
                break  # the first record of a study is its baseline
            launch = self._launch_of(news)
            found.append(self._store.add(replace(news, id=self._store.next_id(), launch=launch)))
            known.add(found[-1].number)
        return found

    def _launch_of(self, news: Measurement) -> int:
        """The number of its launch here: of another tuner's a new one, and the same again for what
        shared that launch there.
        """
        if news.tuner is None:
            return news.launch
        place = (news.tuner, news.launch)
        if place not in self._launches:
            self._launches[place] = self._store.next_launch()
        return self._launches[place]

    def taken(self) -> int:
        """See `Partners`."""
        return self._exchange.taken()

    def elsewhere(self) -> Sequence[Elsewhere]:
        """See `Partners`."""
        return self._exchange.elsewhere()

    def at_work(self, searching: bool) -> None:
        """See `Partners`."""
        self._exchange.at_work(searching)

    def others_at_work(self) -> bool:
        """See `Partners`."""
        return self._exchange.others_at_work()

    def claim(self, wanted: Wanted, limit: int) -> int | None:
        """See `Partners`."""
        return self._exchange.claim(wanted, limit)

    def publish(self, measurement: Measurement) -> bool:
        """See `Partners`."""
        assert measurement.trial is not None
        return self._exchange.publish(measurement.trial, measurement)

    def others_result(self) -> dict[str, Any] | None:
        """What another tuner has confirmed with all the trials there are."""
        result = self._exchange.result()
        return None if result is None or result["tuner"] == self.tuner else result

    def leave_to(self, *, out_of_time: bool) -> str | None:
        """None where this tuner is to confirm the result, else who does, in a line."""
        result = self.others_result()
        if result is not None:
            return told(result)
        if self._led:
            return "the tuner that has started this one confirms the result"
        if out_of_time and self.elsewhere():
            return "other tuners go on; the last one confirms the result"
        confirmer = self._exchange.claim_confirmation()
        self.confirms = confirmer is None
        return None if confirmer is None else left_to(confirmer)

    def leave_confirmation(self) -> None:
        """Others may confirm the result in this tuner's place."""
        self._exchange.leave_confirmation()
        self.confirms = False

    def publish_result(self, verdict: str) -> None:
        """The files written for this study, and the verdict, for the others to take over."""
        paths = self._store.paths
        files = {name: getattr(paths, name) for name in _FILES}
        self._exchange.publish_result(
            {
                "folder": paths.name,
                "verdict": verdict,
                "trials": len(self._store.trials),
                "files": {n: f.read_text(encoding="utf-8") for n, f in files.items() if f.exists()},
            }
        )
        paths.others_result.unlink(missing_ok=True)


@contextlib.contextmanager
def joined(sharing: Sharing | None, definition: Definition, store: Store) -> Iterator[Team | None]:
    """The other tuners, as long as this one takes part. Raises UsageError, StudyError."""
    if sharing is None:
        yield None
        return
    from nccltune.study.sharing import Exchange, own_tuner

    tuner, folder = own_tuner(store.paths), store.paths.name
    exchange = Exchange(sharing.shared, sharing.name, definition, tuner, folder)
    try:
        yield Team(exchange, store, sharing.followers, led=sharing.led)
    finally:
        exchange.close()


def refuse_shared(paths: StudyPaths) -> None:
    """A study that was begun with others does not go on without them.

    Raises: UsageError.
    """
    if not paths.tuner.exists():
        return
    if has_records(paths):
        raise UsageError(
            f"{paths.folder}: this study is shared with other tuners; give the --storage that it "
            "was begun with, or another --study name"
        )
    paths.tuner.unlink()


def take_over(result: Mapping[str, Any], paths: StudyPaths) -> None:
    """Write what another tuner has confirmed into this tuner's own folder."""
    for name in _FILES:
        file = getattr(paths, name)
        if name in result["files"]:
            write_text(file, result["files"][name])
        else:
            file.unlink(missing_ok=True)
    rest = {name: value for name, value in result.items() if name != "files"}
    write_text(paths.others_result, json.dumps(rest) + "\n")


def confirmed_elsewhere(paths: StudyPaths, trials: int) -> dict[str, Any] | None:
    """What another tuner has confirmed with so many trials, as `take_over` left it here."""
    try:
        result = json.loads(paths.others_result.read_bytes())
        whole = all(isinstance(result[name], str) for name in ("tuner", "folder", "verdict"))
        return dict(result) if whole and result["trials"] == trials else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def told(result: Mapping[str, Any]) -> str:
    """What another tuner has confirmed, in a line."""
    return f"Confirmed by tuner {result['tuner']} (study {result['folder']}): {result['verdict']}."


def left_to(confirmer: Confirmer) -> str:
    """Who confirms in this tuner's place, in a line."""
    return (
        f"tuner {confirmer.tuner} confirms the result: `nccltune show {confirmer.folder}` there "
        "has it, and this command, given again later"
    )
