"""Kernels for POP: which places in their queue records have, and for which topic those of a retry topic were sent."""

from __future__ import annotations

import numpy as np
from numba import void

from ...intrinsics.kernel import BYTES, INTS, LONGS, OUT_LONGS, kernel
from ...intrinsics.memory import address_of, load_i64
from ..kernels.pairs import hash_at, pair_name, value_at
from ..kernels.scanning import RECORD, measure_at
from ..properties import RETRY_TOPIC

_RETRY_TOPIC = pair_name(RETRY_TOPIC)
_QUEUE_OFFSET_AT = 20


@kernel(void, BYTES, LONGS, OUT_LONGS)
def queue_offsets(records, positions, offsets):
    """QUEUEOFFSET of each record, which is sound."""
    address = address_of(records)
    for i in range(len(positions)):
        offsets[i] = load_i64(address, positions[i] + _QUEUE_OFFSET_AT)


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS)
def origin_topics(records, positions, sizes, hashes):
    """The hash (:func:`..kernels.pairs.name_hash`) of each record's ``RETRY_TOPIC``; 0 without one."""
    address = address_of(records)
    for i in range(len(positions)):
        hashes[i] = np.int64(0)
        kind, _, _, _, _, _, _, properties, size = measure_at(address, positions[i], positions[i] + sizes[i])
        if kind == RECORD:
            start, end = value_at(address, properties, properties + size, _RETRY_TOPIC)
            if start < end:
                hashes[i] = hash_at(address, start, end)
