"""Reading by queue entries: the records of a few topics, where they are a small part of a large log.

The entries are read when the query is planned. A log file is read by them if the store's queues are known to reach as
far as the log (it is closed, or its checkpoint says so) and :mod:`.accounting` proves that they name every record of
that file; the other files are scanned. So it is in any case the records that a scan finds, but damage where no wanted
record lies goes unnoticed. An entry that names a record of another topic or queue is damage too. Everything is scanned
where the entries name a fifth of the bytes or more, and with ``verify=full``, which is to prove the log and the queues,
not to rely on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.formats.record.kernels import ROW, scan
from penstock.proto.errors import StorageError

from ..derived import Longs, QueueFile
from ..files import Bytes, FileReader, open_file_system
from ..model import Damage, LogFile, Store
from ..options import StoreOptions
from .accounting import account_for
from .planning import Split, plan_splits

log = logging.getLogger(__name__)

SHARE_MAX = 0.2
"""Of the log's bytes: above it a scan, which reads on and on, is faster."""
GAP_BYTES_MAX = 64 << 10
"""Records so near to each other are read together."""
READ_BYTES_MAX = 8 << 20


def plan_picks(
    store: Store, options: StoreOptions, first_time: Callable[[LogFile], int | None] = lambda file: None
) -> list[Split] | None:
    """Splits with the positions of the wanted records, and scans of files whose records queues do not all name.

    None where the whole log is to be scanned. ``first_time``: see :func:`.plan_splits`.
    """
    if options.verify == "full" or store.gaps or not (options.use_consume_queue and options.topics):
        return None
    scans = list(plan_splits(store, options, first_time))
    files = sorted({split.file for split in scans if split.file is not None}, key=lambda file: file.start)
    if not files:
        return scans

    def is_wanted(file: QueueFile) -> bool:
        return file.topic in options.topics and (not options.queue_ids or file.queue_id in options.queue_ids)

    try:
        found = account_for(store, files, is_wanted)
        if found is None:
            return None
        account, positions, sizes = found
        covered = account.covered(open_file_system(store.root)[0])
    except StorageError as error:  # a scan needs no queues
        log.warning("queues not read, the log is scanned instead store=%s error=%s", store.root, error)
        return None
    order = np.argsort(positions, kind="stable")
    positions, sizes = positions[order], sizes[order]
    within = (positions >= files[0].start) & (positions < store.end)
    if not covered or sizes[within].sum() >= SHARE_MAX * sum(file.end for file in files):
        return None
    left = set(files).difference(covered)
    splits = [split for split in scans if split.file in left]
    splits += _splits(store, covered, options, positions, sizes)
    return sorted(splits, key=lambda split: (split.file.start if split.file else 0, split.begin))


def _splits(
    store: Store, files: Sequence[LogFile], options: StoreOptions, positions: Longs, sizes: Longs
) -> Iterator[Split]:
    first, last = options.start_physical_offset, options.end_physical_offset
    for file in files:
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
    """The picked records of a file whose first byte is at ``start`` of the log; anything else there as damage.

    Raises StorageError: the file cannot be read.
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
