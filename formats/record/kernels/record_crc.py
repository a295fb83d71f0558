"""The whole-record checksum: a property at the very end of a record, RocketMQ's ``enabledAppendPropCRC``.

The last 20 bytes of the properties, counted in their length::

    __CRC32# 0x01 dddddddddd 0x02      ten decimal digits, the least significant first, padded with 0

The checksum is CRC-32 masked with 0x7FFFFFFF, as a body's, over all bytes of the record before these 20, with queue
offset, physical offset and store time in their places. Example: 907060870 stands there as ``0780607090``.

Source: RocketMQ ``MessageDecoder#createCrc32``, ``CommitLog#checkMessageAndReturnSize``.
"""

from __future__ import annotations

import numpy as np
from numba import int64

from ...intrinsics.crc import crc32_at
from ...intrinsics.kernel import kernel
from ...intrinsics.memory import load_i64, load_u8
from ..layout import CRC_MASK, RECORD_CRC_BYTES, RECORD_CRC_PREFIX

ABSENT, RIGHT, WRONG = 0, 1, 2
"""What :func:`record_crc_at` finds."""
_HEAD = int.from_bytes(RECORD_CRC_PREFIX[:8], "big", signed=True)
_DIGITS = RECORD_CRC_BYTES - len(RECORD_CRC_PREFIX) - 1


@kernel(int64, int64, int64, int64, int64)
def record_crc_at(address, start, end, properties_size):
    """Whether the record ``[start, end)`` behind ``address`` ends with its checksum: ABSENT, RIGHT or WRONG."""
    at = end - RECORD_CRC_BYTES
    if properties_size < RECORD_CRC_BYTES or load_i64(address, at) != _HEAD or load_u8(address, at + 8) != 1:
        return np.int64(ABSENT)
    left = crc32_at(address, start, at) & CRC_MASK
    for i in range(_DIGITS):
        if load_u8(address, at + 9 + i) != 48 + left % 10:
            return np.int64(WRONG)
        left //= 10
    return np.int64(RIGHT if load_u8(address, end - 1) == 2 else WRONG)
