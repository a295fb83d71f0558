"""Inner batches: client batches that RocketMQ keeps as one record each, and their units in batch consume queues.

Topics with the attribute ``queue.type=BatchCQ`` have such records, with INNER_BATCH in SYSFLAG. Their queues lie in
``batchconsumequeue/<topic>/<queue id>``: units of 46 bytes, big-endian, in the log's order from the first place on.

| Offset | Size | Field |
|---|---|---|
| 0 | 8 | physical offset of the record |
| 8 | 4 | its size |
| 12 | 8 | tags code |
| 20 | 8 | store time, ms |
| 28 | 8 | queue offset of its first message: the property INNER_BASE, or the record's queue offset |
| 36 | 2 | how many messages it holds: the property INNER_NUM |
| 38 | 4 | compacted offset, -1: none |
| 42 | 4 | reserved, 0 |
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.formats.record.layout import SysFlag
from penstock.formats.record.properties import INNER_BASE, INNER_NUM, decode_properties

from .files import Bytes

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
Rows = npt.NDArray[np.void]


def is_inner_batch(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which records are inner batches."""
    found: npt.NDArray[np.bool_] = rows["sys_flag"] & SysFlag.INNER_BATCH != 0
    return found


def batch_units(buffer: Bytes, rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Numbers of the rows that have a unit, and these, in the rows' order.

    Inner batches without a number of messages have none, nor have prepared and rolled-back ones.
    """
    kinds = rows["sys_flag"] & SysFlag.TRANSACTION_MASK
    special = np.isin(kinds, (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK))
    numbers, units = [], []
    for number in np.flatnonzero(is_inner_batch(rows) & ~special).tolist():
        row = rows[number]
        at = int(row["properties_position"])
        properties = decode_properties(buffer[at : at + int(row["properties_size"])].tobytes())
        count = _number(properties.get(INNER_NUM, ""), _COUNT_MAX)
        if count is None:
            continue
        base = _number(properties.get(INNER_BASE, ""), _BASE_MAX)
        offset = int(row["queue_offset"]) if base is None else base
        numbers.append(number)
        units.append((*(row[name] for name in BATCH_UNIT.names[:4]), offset, count, -1, 0))  # type: ignore[index]
    return np.array(numbers, np.int64), np.array(units, BATCH_UNIT)


def _number(text: str, most: int) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        return None
    return int(text) if int(text) <= most else None
