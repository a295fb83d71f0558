"""Ops: what happened to messages of POP groups, as records of ``names.POP_TOPIC``, queue 0.

The body of such a record is one op after the other, big-endian:

| Offset | Size | Field |
|---|---|---|
| 0 | 4 | size of the op |
| 4 | 1 | :class:`Kind` |
| 5 | 1 | 1: the group is orderly |
| 6 | 1 | length g of the group's name |
| 7 | 1 | length t of the topic's name |
| 8 | 4 | queue id |
| 12 | 8 | nothing from this queue offset on was given out yet (POP, PARK, STATE) |
| 20 | 8 | when they are visible again, ms since 1970 (POP, CHANGE, PARK, RENEW); or hash of their own topic (PARK) |
| 28 | 4 | count of messages |
| 32 | g + t | names |
| … | 8 | offset of the first message, if there is any |
| … | 4 × (count - 1) | from each to the next |

A STATE has columns of whole numbers instead: offsets, visible times and check points of 8 bytes, times of 4, and 1
byte for what is acknowledged out of order. The record's own queue offset is the *check point* of what it gives out.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

Longs = np.ndarray[Any, np.dtype[np.int64]]

HEAD: Final = struct.Struct(">IBBBBiqqI")
_FIRST: Final = struct.Struct(">q")
_NEXT: Final = b"\0\0\0\1"
"""From each to the next of offsets without a gap, as most are."""
_GAP_MAX: Final = (1 << 32) - 1
_COLUMNS: Final = (">i8", ">i8", ">i8", ">i4", ">u1")
_ROW_BYTES: Final = sum(np.dtype(each).itemsize for each in _COLUMNS)
NOTHING: Final = np.empty(0, np.int64)


class Kind(enum.IntEnum):
    """What an op says of its messages. Frozen into kernels."""

    POP = 1  # new ones were given out
    PARK = 2  # of the retry topic: nobody has asked for their own topic yet; those in flight: given back, not begun
    DONE = 3  # acknowledged, or gone
    CHANGE = 4  # visible at another time
    AGAIN = 5  # given out again in place, which counts as one more time
    REPOST = 6  # their copies go to the retry topic, behind this record
    DEAD = 7  # their copies go to the dead letters, behind this record
    STATE = 8  # all of the queue: whatever was said before counts no more
    RENEW = 9  # visible at another time, under the check point that they have


class Rows(NamedTuple):
    """Messages in flight, by ascending offset."""

    offsets: Longs
    visible: Longs
    points: Longs
    times: Longs
    finished: Longs


class Op(NamedTuple):
    """One op; ``at_ms``: the field at 20, ``rows``: of a STATE."""

    kind: Kind
    group: str
    topic: str
    queue_id: int
    offsets: Longs
    next: int = 0
    at_ms: int = 0
    is_orderly: bool = False
    rows: Rows | None = None

    def encode(self) -> bytes:
        """The op's bytes; those of several ops where two offsets lie too far apart for one."""
        count = len(self.offsets) if self.rows is None else len(self.rows.offsets)
        first = int(self.offsets[0]) if self.rows is None and count else 0
        if self.rows is None and count and int(self.offsets[-1]) - first == count - 1:
            content = _FIRST.pack(first) + _NEXT * (count - 1)
        elif self.rows is None and count:
            gaps = self.offsets[1:] - self.offsets[:-1]
            if self.offsets[-1] - self.offsets[0] > _GAP_MAX and gaps.max() > _GAP_MAX:
                parts = np.split(self.offsets, np.flatnonzero(gaps > _GAP_MAX) + 1)
                return b"".join(self._replace(offsets=part).encode() for part in parts)
            content = _FIRST.pack(first) + gaps.astype(">u4").tobytes()
        elif self.rows is not None:
            content = b"".join(column.astype(kind).tobytes() for column, kind in zip(self.rows, _COLUMNS, strict=True))
        else:
            content = b""
        group, topic = self.group.encode(), self.topic.encode()
        size = HEAD.size + len(group) + len(topic) + len(content)
        head = HEAD.pack(
            *(size, self.kind, self.is_orderly, len(group), len(topic)), *(self.queue_id, self.next, self.at_ms, count)
        )
        return b"".join((head, group, topic, content))


def joined(ops: Iterable[Op]) -> list[Op]:
    """The ops of a record with those as one that were encoded as several."""
    found: dict[tuple[Kind, str, str, int], Op] = {}
    for op in ops:
        key = op[:4]
        known = found.get(key)
        found[key] = op if known is None else known._replace(offsets=np.concatenate((known.offsets, op.offsets)))
    return list(found.values())


def read_ops(body: bytes | memoryview) -> Iterator[Op]:
    """The ops of a record. Raises ValueError: the body is not of their shape."""
    start = 0
    while start < len(body):
        if len(body) - start < HEAD.size:
            raise ValueError(f"an op of {len(body) - start} bytes at {start}")
        size, kind, orderly, group_size, topic_size, queue_id, following, at_ms, count = HEAD.unpack_from(body, start)
        content = HEAD.size + group_size + topic_size
        is_state = kind == Kind.STATE
        needed = count * _ROW_BYTES if is_state else max(count - 1, 0) * 4 + (8 if count else 0)
        if size != content + needed or size > len(body) - start:
            raise ValueError(f"an op of {size} bytes at {start}, {len(body) - start} are left")
        names = bytes(body[start + HEAD.size : start + content]).decode()
        data = memoryview(body)[start + content : start + size]
        rows, offsets = (_rows(data, count), NOTHING) if is_state else (None, _offsets(data, count))
        yield Op(
            *(Kind(kind), names[:group_size], names[group_size:], queue_id, offsets),
            *(following, at_ms, bool(orderly), rows),
        )
        start += size


def _offsets(data: memoryview, count: int) -> Longs:
    offsets = np.empty(count, np.int64)
    if count:
        offsets[0] = _FIRST.unpack_from(data)[0]
        offsets[1:] = np.frombuffer(data, ">u4", count - 1, 8)
    return np.cumsum(offsets)


def _rows(data: memoryview, count: int) -> Rows:
    columns, start = [], 0
    for kind in _COLUMNS:
        column = np.frombuffer(data, kind, count, start)
        columns.append(column.astype(np.int64))
        start += column.nbytes
    return Rows(*columns)
