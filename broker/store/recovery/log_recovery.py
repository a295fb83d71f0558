"""Finding the end of a log that was not closed: the files' side of :mod:`.recovery`."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import numpy as np

from penstock.formats.intrinsics.text import first_nonzero
from penstock.formats.record.kernels import ScanStatus
from penstock.formats.record.kernels.scanning import find_record
from penstock.formats.record.layout import (
    FIXED_BYTES,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_BYTES_MAX,
    SysFlag,
)
from penstock.formats.record.properties import PROPERTIES_BYTES_MAX
from penstock.formats.record.rows import ROW
from penstock.proto.errors import Corrupt, WrongStore

from ..disk import Disk, opened
from ..log.commit_log import CommitLog
from ..log.log_file import LogFile
from ..log.log_kernels import first_torn, first_unsealed
from ..log.readable_log import ROWS_AT_ONCE, Chunk
from .marks import track
from .recovery import MarkTracker, is_refused, was_synced

log = logging.getLogger(__name__)

_SECTOR = 512
_SIZE_BYTES = 4
_SIZE_AND_MAGIC_BYTES = 8
_OFFSET_AT = 28
_SYS_FLAG_AT = 36
_BEHIND_BODY_MIN = 3
_KEPT_AT_ONCE = 1 << 20
_DAMAGED = (ScanStatus.EMPTY, ScanStatus.BAD, ScanStatus.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What a scan found."""

    end: int  # everything below is sound
    last_store_timestamp_ms: int
    derived_is_boundary: bool  # a record (or file) begins at the checkpoint's derived offset
    scanned_bytes: int
    reason: str  # why it ends there, empty for a log that just ends
    loses_synced: bool = False  # what is damaged there was synced


def find_end(log_: CommitLog, start: int, derived: int | None, synced: int | None, *, sealed: bool) -> LogEnd:
    """Scan the log from ``start``; changes nothing.

    ``synced``: everything below it was synced; None for a store of another program. ``sealed``: every record must
    have a whole-record checksum.

    Raises:
        Corrupt: sound records lie behind damage that no crash explains; the bytes are kept as they are.
        WrongStore: the bytes are no log, or of a later version; ``sealed``, and a sound record has no such checksum.
    """
    rows = np.zeros(ROWS_AT_ONCE, ROW)
    marked = np.zeros(ROWS_AT_ONCE, np.int32)
    tracker = MarkTracker()
    end, newest_ms, boundary = start, log_.last_store_timestamp_ms, derived == start
    damaged: Chunk | None = None
    for chunk in log_.chunks(start, log_.end_offset, rows, check_crc=True):
        chunk = chunk if synced is None else _sound_part(chunk, synced)
        if sealed:
            _check_sealed(chunk)
        if chunk.count:
            newest_ms = max(newest_ms, int(rows["store_timestamp"][chunk.count - 1]))
            track(tracker, chunk, marked)
            if derived is not None and int(rows["physical_offset"][0]) <= derived:
                found = int(np.searchsorted(rows["physical_offset"][: chunk.count], derived))
                boundary = boundary or (found < chunk.count and int(rows["physical_offset"][found]) == derived)
                last = rows[chunk.count - 1]  # what follows may be a blank
                boundary = boundary or int(last["physical_offset"]) + int(last["size"]) == derived
        end = chunk.end
        boundary = boundary or end == derived
        if end == chunk.file.end:
            tracker.on_file_end()
        if chunk.status in _DAMAGED:
            damaged = chunk
            break
    reason, loses_synced = "", False
    if damaged is not None:
        reason, loses_synced = _judge(log_, damaged.file, end, damaged.status, newest_ms, synced)
    cut = tracker.cut_at(end)
    if cut < end:
        reason = f"a batch that begins at {cut} lacks {tracker.missing} of its records"
        newest_ms = log_.last_store_timestamp_ms
        for chunk in log_.chunks(start, cut, rows, check_crc=False):
            if chunk.count:
                newest_ms = max(newest_ms, int(rows["store_timestamp"][chunk.count - 1]))
    return LogEnd(cut, newest_ms, boundary, end - start, reason, loses_synced)


def first_record(log_: CommitLog) -> int:
    """Where the first file's first record begins: a slave's log may begin behind the start of its file."""
    file = log_.files[0]
    data = file.bytes
    if first_nonzero(data, 0, min(8, len(data))) < 8:
        return file.base
    for start, end in log_.written(file, 0):
        found = int(find_record(data, max(0, start - _SIZE_BYTES), end, file.base, 0))
        if found >= 0:
            return file.base + found if first_nonzero(data, max(0, start - _SIZE_BYTES), found) == found else file.base
        if first_nonzero(data, start, end) < end:
            break  # something else comes first
    return file.base


def _sound_part(chunk: Chunk, synced: int) -> Chunk:
    """The chunk up to the first record behind ``synced`` that was not written whole."""
    torn = int(first_torn(chunk.file.bytes, chunk.rows, chunk.count, synced))
    if torn == chunk.count:
        return chunk
    end = int(chunk.rows["physical_offset"][torn])
    return Chunk(chunk.file, chunk.rows, torn, end, ScanStatus.BAD)


def _check_sealed(chunk: Chunk) -> None:
    number = int(first_unsealed(chunk.file.bytes, chunk.rows, chunk.count))
    if number < chunk.count:
        offset = int(chunk.rows["physical_offset"][number])
        raise WrongStore(
            f"{chunk.file.path}: the record at {offset} has no __CRC32# property, which forceVerifyPropCRC demands of "
            "every record: switch that off, or wait until all records without one are gone",
            path=chunk.file.path,
            offset=offset,
        )


def _judge(
    log_: CommitLog, file: LogFile, offset: int, status: ScanStatus, newest_ms: int, synced: int | None
) -> tuple[str, bool]:
    """Why the log ends at the damage, and whether that was synced; empty where nothing but unused space begins."""
    _refuse_unknown(log_, file, offset, synced)
    size = _said_size(file, offset, synced)
    is_known = None if synced is None else was_synced(offset, size, synced)
    # A body may hold what looks like a record in its own place: what begins within a record that was not written to its
    # end is no evidence. Where it is the size that is damaged, the other lengths do not agree with it.
    hidden = range(0) if synced is None else range(max(offset + 1, synced), offset + size)
    if size and not is_known and _is_unfinished(file, offset, size, synced or 0):
        hidden = range(offset + 1, offset + size)
    later = _later_record(log_, file, offset, newest_ms, hidden)
    lost = later is not None and _sector_lost(file, offset, later)
    if is_refused(later=later, sector_lost=lost, was_synced=is_known):
        raise Corrupt(
            f"{file.path}: damaged at {offset} ({status.name.lower()}), sound records follow from {later} on: the "
            "bytes are kept; restore the store from a replica",
            path=file.path,
            offset=offset,
            later=later,
        )
    if is_known:
        return f"{status.name.lower()} record at {offset}, although synced up to {synced}", True
    if status is ScanStatus.EMPTY and later is None:
        rest = log_.written(file, offset - file.base)
        empty = all(first_nonzero(file.bytes, start, end) == end for start, end in rest)
        return "" if empty else f"leftovers behind {offset}", False
    behind = "" if later is None else f", others behind it from {later} on"
    return f"{status.name.lower()} record at {offset}{behind}", False


def keep_cut(disk: Disk, log_: CommitLog, offset: int, path: str) -> None:
    """Copy what the log has from ``offset`` on to the file ``path``, holes as holes; durable on return.

    Raises OSError: nothing of the log was changed.
    """
    with opened(disk, path, create=True) as descriptor:
        disk.truncate(descriptor, 0)
        for file in log_.files:
            for start, end in log_.written(file, max(offset - file.base, 0)) if file.end > offset else ():
                for at in range(start, end, _KEPT_AT_ONCE):
                    piece = file.bytes[at : min(at + _KEPT_AT_ONCE, end)].tobytes()
                    disk.pwrite(descriptor, piece, file.base + at - offset)
        disk.sync(descriptor)
    disk.sync_directory(os.path.dirname(path))


def _said_size(file: LogFile, offset: int, synced: int | None) -> int:
    """The size that a record's first bytes give it; 0 if they cannot be true.

    Where they end at ``synced``, as a slave's may, no more of them is asked than was there.
    """
    head = file.bytes[offset - file.base : offset - file.base + FIXED_BYTES].tobytes()
    own, there = offset.to_bytes(8, "big"), 8
    if synced is not None and offset + _SIZE_AND_MAGIC_BYTES <= synced < offset + _OFFSET_AT + 8:
        there = max(synced - offset - _OFFSET_AT, 0)
    is_own = head[_OFFSET_AT : _OFFSET_AT + there] == own[:there]
    is_record = _number(head, 4) in (MAGIC_V1, MAGIC_V2) and is_own
    size = _number(head, 0)
    return size if is_record and FIXED_BYTES <= size <= file.end - offset else 0


def _is_unfinished(file: LogFile, offset: int, size: int, synced: int) -> bool:
    """True if the record's other lengths agree with its ``size``, where they were written.

    What is zero behind ``synced`` was not: no topic is empty.
    """
    start = offset - file.base
    record = file.bytes[start : start + size]
    head = record[: FIXED_BYTES + 2 * IPV6_EXTRA_BYTES].tobytes()
    flags, prefix = _number(head, _SYS_FLAG_AT), 1 if _number(head, 4) == MAGIC_V1 else 2
    v6 = bool(flags & SysFlag.BORN_HOST_V6) + bool(flags & SysFlag.STORE_HOST_V6)
    body = FIXED_BYTES - _BEHIND_BODY_MIN + v6 * IPV6_EXTRA_BYTES
    topic = body + _number(head, body - 4) + prefix
    if not body + prefix <= topic <= size - 2:
        return False
    topic_bytes = _number(record[topic - prefix : topic].tobytes(), 0, prefix)
    if topic_bytes == 0:
        return offset + topic > synced and size - topic <= 2 + TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX
    properties = topic + topic_bytes + 2
    if not topic < properties <= size:
        return False
    properties_bytes = _number(record[properties - 2 : properties].tobytes(), 0, 2)
    if properties_bytes == 0 and offset + properties > synced:
        return size - properties <= PROPERTIES_BYTES_MAX
    return properties + properties_bytes == size


def _number(data: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "big", signed=True)


def _refuse_unknown(log_: CommitLog, file: LogFile, offset: int, synced: int | None) -> None:
    """Raises WrongStore for records of a later version, or no log at all: cutting them off would destroy them."""
    at = offset - file.base
    head = file.bytes[at : at + FIXED_BYTES].tobytes()
    if len(head) < FIXED_BYTES:
        return
    size, magic = _number(head, 0), _number(head, 4)
    says_so_itself = _number(head, 28, 8) == offset
    is_whole = bool(magic & 0xFF)  # a process that was killed may have written a part of it
    if is_whole and magic not in (MAGIC_V1, MAGIC_V2) and says_so_itself and FIXED_BYTES <= size <= file.end - offset:
        raise WrongStore(
            f"{file.path}: the record at {offset} is of a version that this program does not know (magic "
            f"{magic & 0xFFFFFFFF:08X}): open the store with the program that wrote it",
            path=file.path,
            offset=offset,
        )
    if synced is None and offset == log_.min_offset and head[:8] != bytes(8):
        raise WrongStore(
            f"{file.path}: no record begins at {offset}, where the log does: not a log, or damaged from its start; "
            "nothing was changed, move the file away or restore it from a replica",
            path=file.path,
            offset=offset,
        )


def _later_record(log_: CommitLog, file: LogFile, offset: int, newest_ms: int, hidden: range) -> int | None:
    """Where a sound record begins behind ``offset``, but not in ``hidden``; older ones are leftovers."""
    for each in log_.files:
        if each.base < file.base:
            continue
        first = offset + 1 - each.base if each is file else 0
        for start, end in log_.written(each, first):
            # The first bytes of a record's size may be zeros, and so lie before the stretch.
            start = max(first, start - _SIZE_BYTES)
            parts = [(start, end)]
            if each is file and hidden:
                parts = [(start, min(end, hidden.start - each.base)), (max(start, hidden.stop - each.base), end)]
            for low, high in parts:
                found = int(find_record(each.bytes, low, high, each.base, newest_ms)) if low < high else -1
                if found >= 0:
                    return each.base + found
    return None


def _sector_lost(file: LogFile, offset: int, later: int) -> bool:
    """True if a sector between the damage and the next sound record lacks its end, or all of it.

    It lacks its end when it was written out while a record was only in part there, as a slave's may be.
    """
    data = file.bytes
    stop = len(data) if later >= file.end else later - file.base
    start = offset - file.base
    last = stop - stop % _SECTOR
    if last > start and bool((data[start - start % _SECTOR + _SECTOR - 1 : last : _SECTOR] == 0).any()):
        return True
    rest = max(start, last)
    return rest < stop and bool(first_nonzero(data, rest, stop) == stop)
