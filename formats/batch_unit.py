"""The unit of a batch consume queue: one for each inner batch, a client batch that RocketMQ keeps as one record.

Topics with the attribute ``queue.type=BatchCQ`` have such records, with INNER_BATCH in SYSFLAG. Their queues hold units
end to end, in the log's order from the first place on, big-endian, 46 bytes each:

| Offset | Type | Field |
|---|---|---|
| 0 | i64 | physical offset of the record |
| 8 | i32 | size of the record |
| 12 | i64 | tags code |
| 20 | i64 | store time, ms |
| 28 | i64 | queue offset of the first message: the property INNER_BASE, or the record's queue offset |
| 36 | i16 | number of messages: the property INNER_NUM |
| 38 | i32 | compacted offset, -1: none |
| 42 | i32 | reserved, 0 |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .record.properties import INNER_BASE, INNER_NUM

BATCH_UNIT = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base", ">i8"),
        ("count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
BATCH_UNIT_BYTES = 46
assert BATCH_UNIT.itemsize == BATCH_UNIT_BYTES
_BASE_MAX, _COUNT_MAX = (1 << 63) - 1, (1 << 15) - 1


class BatchUnit(NamedTuple):
    """What the unit of an inner batch holds; the other fields are always the same."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base: int
    messages: int


def messages_of(properties: Mapping[str, str], queue_offset: int) -> tuple[int, int] | None:
    """(queue offset of the first message, number of messages) of an inner batch; None if its record says no number.

    ``properties`` and ``queue_offset`` are the record's.
    """
    count = _number(properties.get(INNER_NUM, ""), _COUNT_MAX)
    if count is None:
        return None
    base = _number(properties.get(INNER_BASE, ""), _BASE_MAX)
    return queue_offset if base is None else base, count


def pack_units(units: Iterable[BatchUnit]) -> npt.NDArray[np.void]:
    return np.array([(*unit, -1, 0) for unit in units], BATCH_UNIT)


def _number(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        return None
    return int(text) if int(text) <= most else None
