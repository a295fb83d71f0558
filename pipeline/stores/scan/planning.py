"""Which parts of which files a query reads, and in how many tasks. Plain decisions: no Spark, no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import ConfigError

from ..model import Damage, LogFile, Store
from ..options import SOURCE, StoreOptions

CLOCK_STEP_MS = 60_000
"""A broker's clock that is set back by more than this can hide messages from a search by time."""


@dataclass(frozen=True, slots=True)
class Split:
    """Records that begin in ``[begin, end)`` of one log file, or, without a file, damage that the listing shows.

    ``picks``: only the records at these positions of the file, with these sizes. ``queues_complete``: see
    :class:`.model.Store`.
    """

    root: str
    broker_name: str
    file: LogFile | None
    begin: int = 0
    end: int = 0
    gap: Damage | None = None
    picks: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
    queues_complete: bool = False


def require_range(stores: Sequence[Store], options: StoreOptions) -> None:
    """Raises ConfigError if all stores are closed, and none reaches into the log positions of the options."""
    first, last = options.start_physical_offset, options.end_physical_offset
    if not stores or any(store.is_open for store in stores):
        return
    logs = [(store.files[0].start, max(store.end, *(gap.end for gap in store.gaps), 0)) for store in stores]
    if any((first is None or first < end) and (last is None or last > start) for start, end in logs):
        return
    name, value = ("endPhysicalOffset", last) if first is None else ("startPhysicalOffset", first)
    if first is not None and any(first < end for _, end in logs):
        name, value = "endPhysicalOffset", last
    there = ", ".join(f"{start} to {end} in {s.root}" for s, (start, end) in zip(stores, logs, strict=True))
    raise ConfigError(f"{SOURCE}: {name} is {value}, and no log has anything there: there are the bytes {there}")


def plan_splits(
    store: Store, options: StoreOptions, first_time: Callable[[LogFile], int | None] = lambda file: None
) -> Iterator[Split]:
    """Cut what the options leave of the store's log at ``split_bytes``.

    ``first_time`` tells the store time of a file's first record, None if it cannot; it is asked only if the options
    limit the time.
    """
    files = _in_time(store.files, options, first_time)
    for file in files:
        begin, end = 0, file.end
        if options.start_physical_offset is not None:
            begin = max(begin, options.start_physical_offset - file.start)
        if options.end_physical_offset is not None:
            end = min(end, options.end_physical_offset - file.start)
        while begin < end:
            stop = min(end, begin + options.split_bytes)
            complete = store.queues_complete
            yield Split(store.root, store.broker_name, file, begin, stop, queues_complete=complete)
            begin = stop
    for gap in store.gaps:
        if _touches(gap, options):
            yield Split(store.root, store.broker_name, None, gap=gap)


def _touches(gap: Damage, options: StoreOptions) -> bool:
    first, last = options.start_physical_offset, options.end_physical_offset
    return (first is None or gap.end > first) and (last is None or gap.start < last)


def _in_time(
    files: Sequence[LogFile], options: StoreOptions, first_time: Callable[[LogFile], int | None]
) -> Sequence[LogFile]:
    """The files that may hold messages of the wanted time: store times grow along the log."""
    start, end = options.start_timestamp_ms, options.end_timestamp_ms
    if start is None and end is None:
        return files
    kept = []
    times = [first_time(file) for file in files]
    for file, begins, following in zip(files, times, [*times[1:], None], strict=True):
        if end is not None and begins is not None and begins >= end + CLOCK_STEP_MS:
            continue
        if start is not None and following is not None and following < start - CLOCK_STEP_MS:
            continue
        kept.append(file)
    return kept
