"""Reading by queue entries: the records of a few topics, where they are a small part of a large log.

The entries are read when the query is planned, and only if they can be trusted to be all there are: the store is
closed, or its checkpoint says that its queues reach as far as the log is read; every wanted topic has queues; the
entries of a queue have no hole and grow along the log. Otherwise, and where they name a fifth of the log or more, the
log is scanned.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from penstock.proto.record.kernels import ROW, scan

from .derived import ENTRY_BYTES, QUEUE_ENTRY, QueueFile, is_entry, list_queue_files
from .files import Bytes, FileReader, open_file_system
from .model import Damage, Store
from .options import StoreOptions
from .planning import Split

Longs = npt.NDArray[np.int64]

SHARE_MAX = 0.2
"""Of the log's bytes: above it a scan, which reads on and on, is faster."""
QUEUE_BYTES_MIN = 16 << 20
QUEUE_SHARE_MAX = 0.05
"""Queue files are read by the planner: so many bytes, or so large a part of the log's, are little."""
GAP_BYTES_MAX = 64 << 10
"""Records so near to each other are read together."""
READ_BYTES_MAX = 8 << 20


def plan_picks(store: Store, options: StoreOptions) -> list[Split] | None:
    """Splits with the positions of the wanted records; None where the log is to be scanned."""
    if not (options.use_consume_queue and options.topics and store.queues_complete) or store.gaps:
        return None
    files = [
        file
        for file in list_queue_files(store.root)
        if file.topic in options.topics and (not options.queue_ids or file.queue_id in options.queue_ids)
    ]
    log_bytes = sum(file.end for file in store.files)
    if {file.topic for file in files} != set(options.topics):
        return None
    if sum(file.size for file in files) > max(QUEUE_BYTES_MIN, QUEUE_SHARE_MAX * log_bytes):
        return None
    parts = []
    for _, queue_files in groupby(files, lambda file: (file.topic, file.queue_id)):
        entries = _entries(store, list(queue_files))
        if entries is None:
            return None
        parts.append(entries)
    found = np.concatenate(parts)
    order = np.argsort(found["physical_offset"], kind="stable")
    positions, sizes = (found[name][order].astype(np.int64) for name in ("physical_offset", "size"))
    if sizes.sum() >= SHARE_MAX * log_bytes or (np.diff(positions) <= 0).any():
        return None
    return list(_splits(store, options, positions, sizes))


def _entries(store: Store, files: list[QueueFile]) -> npt.NDArray[np.void] | None:
    """The entries of one queue that name records of the listed log; None if they cannot be all there are."""
    if any(file.start != former.start + former.size for former, file in pairwise(files)):
        return None
    file_system, _ = open_file_system(store.root)
    parts = []
    for file in files:
        with FileReader(file_system, file.path) as reader:
            data = reader.read(0, file.size)
        parts.append(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].view(QUEUE_ENTRY))
    entries = np.concatenate(parts)
    used = np.flatnonzero(is_entry(entries))
    if not len(used) or used[-1] - used[0] + 1 != len(used):
        return None
    entries = entries[used]
    positions = entries["physical_offset"].astype(np.int64)
    if (np.diff(positions) <= 0).any():
        return None
    return entries[(positions >= store.files[0].start) & (positions < store.end)]


def _splits(store: Store, options: StoreOptions, positions: Longs, sizes: Longs) -> Iterator[Split]:
    first, last = options.start_physical_offset, options.end_physical_offset
    for file in store.files:
        begin = file.start if first is None else max(first, file.start)
        end = file.start + file.end if last is None else min(last, file.start + file.end)
        low, high = np.searchsorted(positions, (begin, end))
        within, lengths = positions[low:high] - file.start, sizes[low:high]
        task = np.cumsum(lengths) // options.split_bytes
        for stop in [*np.flatnonzero(np.diff(task)) + 1, len(within)] if len(within) else []:
            start = int(np.searchsorted(task, task[stop - 1]))
            picks = within[start:stop], lengths[start:stop]
            yield Split(
                store.root, store.broker_name, file, 0, file.end, picks=picks, queues_complete=store.queues_complete
            )


def read_picks(
    reader: FileReader, start: int, picks: tuple[Longs, Longs], *, check_crc: bool
) -> Iterator[tuple[Bytes, npt.NDArray[np.void]] | Damage]:
    """The picked records of a file whose first byte is at ``start`` of the log; what is none of them as damage.

    Raises:
        StorageError: the file cannot be read.
    """
    positions, sizes = picks
    ends = positions + sizes
    at = 0
    while at < len(positions):
        far = np.flatnonzero(
            (positions[at + 1 :] - ends[at:-1] > GAP_BYTES_MAX) | (ends[at + 1 :] - positions[at] > READ_BYTES_MAX)
        )
        stop = at + 1 + (int(far[0]) if len(far) else len(positions) - at - 1)
        data = reader.read(int(positions[at]), int(ends[stop - 1] - positions[at]))
        yield from _of_window(data, start, positions[at:stop], sizes[at:stop], check_crc=check_crc)
        at = stop


def _of_window(
    data: Bytes, start: int, positions: Longs, sizes: Longs, *, check_crc: bool
) -> Iterator[tuple[Bytes, npt.NDArray[np.void]] | Damage]:
    starts = (positions - positions[0]).tolist()
    parts = [data[begin : begin + size] for begin, size in zip(starts, sizes.tolist(), strict=True)]
    at = 0
    while at < len(parts):
        chunk = np.concatenate(parts[at:])
        rows = np.empty(len(parts) - at, ROW)
        count, _, _ = scan(chunk, 0, len(chunk), -1, check_crc, rows)
        rows = rows[:count]
        same = (rows["physical_offset"] == start + positions[at : at + count]) & (
            rows["size"] == sizes[at : at + count]
        )
        good = count if same.all() else int(np.flatnonzero(~same)[0])
        if good:
            yield chunk, rows[:good]
        at += good
        if at < len(parts):
            begin = start + int(positions[at])
            yield Damage(begin, begin + int(sizes[at]), _reason(parts[at], begin))
            at += 1


def _reason(part: Bytes, physical: int) -> str:
    rows = np.empty(1, ROW)
    count, end, _ = scan(part, 0, len(part), physical, False, rows)
    if count == 1 and end == len(part):
        return "the body does not match its checksum"
    return "a queue entry names it, and there is no such record"
