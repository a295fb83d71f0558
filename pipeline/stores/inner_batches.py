"""The units of inner batches (:mod:`penstock.formats.batch_unit`), from their records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.formats.batch_unit import BatchUnit, messages_of, pack_units
from penstock.formats.record.layout import SysFlag
from penstock.formats.record.properties import decode_properties

from .files import Bytes

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
        messages = messages_of(properties, int(row["queue_offset"]))
        if messages is None:
            continue
        place = row["physical_offset"], row["size"], row["tags_code"], row["store_timestamp"]
        numbers.append(number)
        units.append(BatchUnit(*place, *messages))
    return np.array(numbers, np.int64), pack_units(units)
