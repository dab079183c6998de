"""The DataLoaders of the script: which of them feeds the training, what is passed to it, how long
the rank waits for it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torch.utils.data import dataloader as implementation
from torch.utils.data.distributed import DistributedSampler

from nccltune.worker.attach.guarding import Guarded, Note, unguarded
from nccltune.worker.attach.process import ours
from nccltune.worker.attach.samples import BatchSize

_MARK = "_nccltune_record"
_MOST_LOADERS = 1000  # a script that makes one each epoch, for ever
_OF_WORKERS = ("prefetch_factor", "multiprocessing_context", "persistent_workers", "timeout")
_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__))
_HALF = 0.5  # of the steps before which the busiest loader gives batches


@dataclass
class LoaderRecord:
    """One DataLoader of this process. `key` is the same in every launch: which of them it is in the
    order in which they are made, and the class of its data set; `place` is where it is made.
    """

    key: str
    place: str
    iterable: bool
    shuffles: bool
    num_workers: int
    prefetch_factor: int | None
    batch_size: int | None
    passed: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    unready: int = 0
    """Batches that were asked for and not there yet, summed over the batches taken."""
    begun: int = 0
    """How often it was iterated anew."""
    fed: int = 0
    """Steps before which it gave a batch or more."""
    _noted: int = 0
    _taken_up: int = 0
    """When it was made anew last, counted in loaders."""

    def __post_init__(self) -> None:
        self._sizes = BatchSize(self.batch_size)

    @property
    def kind(self) -> str:
        """The class of its data set."""
        return self.key.partition(":")[2]

    def facts(self) -> dict[str, Any]:
        names = ("key", "place", "iterable", "shuffles", "num_workers", "prefetch_factor")
        return {n: getattr(self, n) for n in (*names, "batch_size", "batches", "passed")}


@dataclass
class LoaderUse:
    """What is seen of DataLoaders in this process."""

    arguments: Mapping[str, Any]
    training: frozenset[str] | None
    """Keys of the loaders that feed the training; None where that is not known."""
    match: str | None
    records: list[LoaderRecord] = field(default_factory=list)
    _count: int = 0

    def new(self, given: Mapping[str, Any], place: str) -> LoaderRecord:
        """The record of a loader that is about to be made with these arguments: an older one's,
        where a script makes its loader anew in each epoch.
        """
        self._count += 1
        kind, shuffles = type(given.get("dataset")).__name__, _shuffles(given)
        alike = [
            r
            for r in self.records
            if r.begun and (r.place, r.kind, r.shuffles) == (place, kind, shuffles)
        ]
        if alike:
            record = min(alike, key=lambda r: r._taken_up)
            record._taken_up = self._count
            return record
        dataset = given.get("dataset")
        record = LoaderRecord(
            key=f"{len(self.records) + 1}:{kind}",
            place=place,
            iterable=isinstance(dataset, IterableDataset),
            shuffles=shuffles,
            num_workers=int(given.get("num_workers") or 0),
            prefetch_factor=given.get("prefetch_factor"),
            batch_size=given.get("batch_size", 1),
        )
        record._taken_up = self._count
        if len(self.records) < _MOST_LOADERS:
            self.records.append(record)
        return record

    def wants(self, record: LoaderRecord) -> bool:
        """Whether it gets the arguments."""
        if self.match is not None:
            return matches(record, self.match)
        if self.training is not None:
            return record.key in self.training
        # Not known: the first that shuffles, as training loaders do and others do not.
        before = [r for r in self.records if r is not record and r.shuffles]
        return record.shuffles and not before

    def feeding(self) -> list[LoaderRecord]:
        """Those that gave batches before most steps: half as many as the one with most, or more."""
        if self.match is not None:
            return [r for r in self.records if matches(r, self.match)]
        if known := [r for r in self.records if r.key in (self.training or ())]:
            return known
        most = max((r.fed for r in self.records), default=0)
        feeding = [r for r in self.records if r.fed and r.fed >= _HALF * most]
        return sorted(feeding, key=lambda r: -r.fed)

    def note_step(self) -> None:
        """A step is done."""
        for record in self.records:
            if record.batches != record._noted:
                record.fed += 1
                record._noted = record.batches


def matches(record: LoaderRecord, text: str) -> bool:
    """What `--loader-match` may say: the loader's number, its data set's class, where it is made,
    as train.py or train.py:57, or the whole key.
    """
    number, file = record.key.partition(":")[0], record.place.rpartition(":")[0]
    return text in (number, record.kind, record.key, record.place, file)


def inject_loader(
    arguments: Mapping[str, Any],
    training: Sequence[str] | None,
    match: str | None,
    *,
    count: bool = False,
    waits: bool = True,
    guard: Guarded = unguarded,
) -> LoaderUse:
    """From now on the training loader of this process gets these arguments (`num_workers`,
    `prefetch_factor`), in place of the script's own. `count`: batches are counted, and how long
    they are waited for (`waits`), by what `guard` makes of our functions. To be called once.
    """
    keys = None if training is None else frozenset(training)
    use = LoaderUse(dict(arguments), keys, match)
    original: Any = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:  # the constructor itself says what is wrong
            bound = None
        if bound is None or not ours():
            original(self, *args, **kwargs)
            return
        given = dict(bound.arguments)
        del given["self"]
        record = use.new(given, _place())
        if use.arguments and use.wants(record):
            changed = _changed(given, use.arguments, record)
            record.passed = {n: changed.get(n) for n in use.arguments if n in changed}
            given = changed
        original(self, **given)
        object.__setattr__(self, _MARK, record)

    DataLoader.__init__ = init  # type: ignore[method-assign]
    _watch_iteration(guard(_note_waits if waits else _note_batch) if count else None)
    return use


def _changed(
    given: Mapping[str, Any], arguments: Mapping[str, Any], record: LoaderRecord
) -> dict[str, Any]:
    """The script's own arguments with ours in their place, and what cannot stand beside them."""
    ours_ = dict(arguments)
    if record.iterable:  # other workers would read other data
        ours_.pop("num_workers", None)
    changed = {**given, **ours_}
    if not changed.get("num_workers"):
        for name in _OF_WORKERS:
            changed.pop(name, None)
    if changed.get("prefetch_factor", 0) is None:
        del changed["prefetch_factor"]
    return changed


def _shuffles(given: Mapping[str, Any]) -> bool:
    sampler = given.get("sampler")  # anything that can be iterated: its truth may not be asked
    if sampler is None:
        sampler = getattr(given.get("batch_sampler"), "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return bool(given.get("shuffle")) or isinstance(sampler, RandomSampler)


def _place() -> str:
    """File name and line of the code that makes the loader: the user's own, where a library makes
    it for that.
    """
    here, torch_ = os.path.dirname(__file__), os.path.dirname(implementation.__file__)
    first, frame = None, sys._getframe(1).f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((here, torch_, "<")):
            place = f"{os.path.basename(file)}:{frame.f_lineno}"
            if not any(part in file for part in _LIBRARIES):
                return place
            first = first or place
        frame = frame.f_back
    return first or "?"


def _watch_iteration(note: Note | None) -> None:
    """Iterators know their loader's record. `note` is called with it, the iterator, the batch and
    the seconds that it was waited for.
    """
    iterate: Any = DataLoader.__iter__
    base: Any = implementation._BaseDataLoaderIter
    following = base.__next__

    @functools.wraps(iterate)
    def begin(self: DataLoader[Any]) -> Any:
        iterator = iterate(self)
        record = getattr(self, _MARK, None)
        if record is not None and ours():
            record.begun += 1
            setattr(iterator, _MARK, record)
        return iterator

    @functools.wraps(following)
    def take(self: Any) -> Any:
        record = getattr(self, _MARK, None)
        if record is None or note is None or not ours():
            return following(self)
        began = time.perf_counter()
        batch = following(self)
        note(record, self, batch, time.perf_counter() - began)
        return batch

    DataLoader.__iter__ = begin  # type: ignore[method-assign]
    if note is not None:
        base.__next__ = take


def _note_batch(record: LoaderRecord, _iterator: Any, batch: Any, _waited: float) -> None:
    record.batches += 1
    record.samples += record._sizes.of(batch)


def _note_waits(record: LoaderRecord, iterator: Any, batch: Any, waited: float) -> None:
    _note_batch(record, iterator, batch, waited)
    record.waited += waited
    record.unready += _unready(iterator)


def _unready(iterator: Any) -> int:
    """Batches that the loader's workers still have to make of those that they were asked for; 0
    where that cannot be seen.
    """
    try:
        queues = {id(q): q for q in (iterator._data_queue, iterator._worker_result_queue)}
        ready = sum(int(queue.qsize()) for queue in queues.values())
        early = sum(len(info) == 2 for info in iterator._task_info.values())
        outstanding = int(iterator._tasks_outstanding)
        return max(0, outstanding - ready - early)
    except (AttributeError, NotImplementedError, OSError):
        return 0
