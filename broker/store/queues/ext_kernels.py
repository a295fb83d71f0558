"""Kernels for queue entries with extensions (ConsumeQueueExt), as RocketMQ's ``enableConsumeQueueExt`` leaves them.

Such an entry has, in place of the tag's hash, the address of a unit in ``consumequeue_ext``: a number below those of
32 bits. The unit holds the hash again, the store time, and a bit map for filters; hash and time are copies of what
the record says, so they are taken from there, and a lost unit costs nothing.
Source: RocketMQ ``ConsumeQueueExt#isExtAddr``, ``#decorate``.
"""

from __future__ import annotations

import numpy as np
from numba import int64, void

from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, kernel
from penstock.formats.intrinsics.memory import address_of, load_i32, load_i64, store_i64
from penstock.formats.queue_entry import ENTRY_BYTES, HASH_MIN, SIZE_AT, TAGS_AT
from penstock.formats.record.kernels import measure_at, tags_code_at
from penstock.formats.record.kernels.scanning import RECORD
from penstock.formats.record.layout import FIXED_BYTES


@kernel((int64,) * 2, BYTES, int64)
def first_and_last_extended(entries, count):
    """Log positions of the first and the last of ``count`` entries with an extension; (-1, -1) without any."""
    address = address_of(entries)
    first = last = np.int64(-1)
    for i in range(count):
        if load_i64(address, i * ENTRY_BYTES + TAGS_AT) < HASH_MIN:
            last = load_i64(address, i * ENTRY_BYTES)
            if first < 0:
                first = last
    return first, last


@kernel(void, OUT_BYTES, int64, BYTES, int64)
def set_tags_codes(entries, count, log, base):
    """Put the tag's hash in place of each extension's address, from the records in ``log``, the file at ``base``.

    An entry that leads to no such record stays as it is.
    """
    address, log_address = address_of(entries), address_of(log)
    for i in range(count):
        at = i * ENTRY_BYTES
        if load_i64(address, at + TAGS_AT) >= HASH_MIN:
            continue
        start, size = load_i64(address, at) - base, load_i32(address, at + SIZE_AT)
        if start < 0 or size < FIXED_BYTES or start + size > len(log):
            continue
        kind, end, _, _, _, _, _, properties, properties_size = measure_at(log_address, start, start + size)
        if kind == RECORD and end == start + size:
            code = tags_code_at(log_address, properties, properties + properties_size, len(log))
            store_i64(address, at + TAGS_AT, code)
