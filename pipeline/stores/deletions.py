"""Where a log deletes topics: between two deletions lies a life of the topic, whose queue offsets are its own.

A Penstock broker deletes a topic, or a light queue, by a record of the topic :data:`~penstock.proto.names.STATE_TOPIC`
with the tag ``TOPIC_DELETED`` and the body ``{"topicName": …}``. Its messages stay in the log; its queues have none of
what lies in front of the last such record, and begin at 0 behind it. RocketMQ's logs have no such records.

State records have a queue, whose entries say where to look. It is believed as far as each entry names the record that
it should, without a hole, from the log's start on; what lies in front of its first record and behind its last one is
scanned, so that nothing depends on a queue that ends too early. A queue that is wrong anywhere counts for nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.hashing import string_hash
from penstock.proto.errors import Corrupt
from penstock.proto.names import STATE_TOPIC

from .derived import QueueFile, list_queue_files, read_queue_file
from .files import Bytes, FileReader, open_file_system
from .model import Damage, Store
from .options import StoreOptions
from .scan.picking import read_picks
from .scan.planning import Split, plan_splits
from .scan.scanning import FileScan, Rows, has_no_entry

log = logging.getLogger(__name__)

_DELETED = string_hash("TOPIC_DELETED")
_STATE = STATE_TOPIC.encode()


class Deletion(NamedTuple):
    """A topic and the log position of the record that deletes it."""

    topic: str
    position: int


class StatePart(NamedTuple):
    """What one file of the state queue names of the log: offsets and positions, ``end`` behind the last record.

    ``is_first``: no earlier state record is in the log.
    """

    first: int
    last: int
    start: int
    end: int
    is_first: bool
    deletions: tuple[Deletion, ...]


def find_deletion_rows(buffer: Bytes, rows: Rows) -> npt.NDArray[np.int64]:
    """Numbers of the rows that delete a topic."""
    found: npt.NDArray[np.int64] = np.flatnonzero((rows["tags_code"] == _DELETED) & (rows["topic_size"] == len(_STATE)))
    if not len(found):
        return found
    return found[_is_state(buffer, rows[found])]


def _is_state(buffer: Bytes, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows are records of the state topic's queue."""
    starts = rows["topic_position"].tolist()
    named = [buffer[at : at + len(_STATE)].tobytes() == _STATE for at in starts]
    same: npt.NDArray[np.bool_] = np.array(named, np.bool_) & ~has_no_entry(rows)
    same &= (rows["topic_size"] == len(_STATE)) & (rows["queue_id"] == 0)
    return same


def deletions_of(buffer: Bytes, rows: Rows) -> Iterator[Deletion]:
    """The deletions among the rows; those whose body names no topic are passed over, with a warning."""
    for row in rows[find_deletion_rows(buffer, rows)]:
        position, at = int(row["physical_offset"]), int(row["body_position"])
        try:
            topic = json.loads(buffer[at : at + int(row["body_size"])].tobytes())["topicName"]
        except (ValueError, KeyError, TypeError) as error:
            log.warning("deletion of no topic passed over position=%d error=%r", position, error)
            continue
        yield Deletion(str(topic), position)


def list_state_files(store: Store) -> list[QueueFile]:
    """The files of the state topic's queue, in order."""
    return [file for file in list_queue_files(store.root) if (file.topic, file.queue_id) == (STATE_TOPIC, 0)]


def read_state_file(store: Store, file: QueueFile) -> StatePart | None:
    """What a file of the state queue names of the log; None where it names nothing.

    Raises:
        Corrupt: an entry does not name the record that it should.
        StorageError: a file cannot be read.
    """
    file_system, _ = open_file_system(store.root)
    offsets, entries = read_queue_file(file_system, file)
    positions, sizes = (entries[name].astype(np.int64) for name in ("physical_offset", "size"))
    if (np.diff(offsets) != 1).any() or (np.diff(positions) <= 0).any():
        raise Corrupt(f"{file.path}: its entries are no queue without a hole")
    first, last = np.searchsorted(positions, (store.files[0].start, store.end))
    if first == last:
        return None
    offsets, positions, sizes = offsets[first:last], positions[first:last], sizes[first:last]
    found: list[Deletion] = []
    done = 0
    for each in store.files:
        low, high = np.searchsorted(positions, (each.start, each.start + each.end))
        with FileReader(file_system, each.path) as reader:
            for piece in read_picks(
                reader, each.start, (positions[low:high] - each.start, sizes[low:high]), check_crc=False
            ):
                if isinstance(piece, Damage):
                    raise Corrupt(f"{file.path}: at {piece.start} of the log: {piece.reason}")
                buffer, rows = piece
                wanted = offsets[done : done + len(rows)]
                if not _is_state(buffer, rows).all() or (rows["queue_offset"] != wanted).any():
                    raise Corrupt(f"{file.path}: entries from {wanted[0]} on name records of another queue or offset")
                found += deletions_of(buffer, rows)
                done += len(rows)
    if done < len(offsets):
        raise Corrupt(f"{file.path}: the log has no file for the record at {positions[done]}")
    is_first = bool(offsets[0] == 0 or first > 0)
    return StatePart(
        int(offsets[0]), int(offsets[-1]), int(positions[0]), int(positions[-1] + sizes[-1]), is_first, tuple(found)
    )


def unread_ranges(store: Store, parts: Sequence[StatePart]) -> list[tuple[int, int]]:
    """What of the log may hold state records besides those in the parts; all of it where these are no whole queue."""
    start, end = store.files[0].start, store.end
    parts = sorted(parts)
    if not parts or any(later.first != former.last + 1 for former, later in pairwise(parts)):
        return [(start, end)]
    ranges = [(start, start if parts[0].is_first else parts[0].start), (parts[-1].end, end)]
    return [(low, high) for low, high in ranges if low < high]


def plan_scans(store: Store, ranges: Iterable[tuple[int, int]]) -> list[Split]:
    """The ranges of the log, cut into tasks."""
    found = []
    for start, end in ranges:
        options = StoreOptions(roots=(store.root,), start_physical_offset=start, end_physical_offset=end)
        found += [split for split in plan_splits(store, options) if split.file is not None]
    return found


def scan_deletions(split: Split) -> Iterator[Deletion]:
    """The deletions in a part of the log, whose damage is passed over.

    Raises:
        StorageError: the file cannot be read.
    """
    file = split.file
    assert file is not None
    file_system, _ = open_file_system(split.root)
    with FileReader(file_system, file.path) as reader:
        for piece in FileScan(reader, file.start, file.end, check_crc=False).read(split.begin, split.end):
            if not isinstance(piece, Damage):
                yield from deletions_of(*piece)
