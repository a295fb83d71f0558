"""The kernel that tells which records of a batch have a sharding key."""

from __future__ import annotations

from numba import boolean, int64

from ..intrinsics.kernel import BYTES, kernel
from ..intrinsics.memory import address_of
from .kernels.pairs import pair_name, value_at
from .kernels.scanning import RECORD, measure_at
from .properties import SHARDING_KEY

_KEY = pair_name(SHARDING_KEY)


@kernel((int64,) * 2, BYTES, boolean)
def keyed_records(records, keyed):
    """(how many records, the index of the first) of those that have a sharding key, or with ``keyed`` false have none.

    The index is -1 without one. What is no record ends the batch.
    """
    address, position, index = address_of(records), 0, 0
    count, first = 0, -1
    while position < len(records):
        kind, end, _, _, _, _, _, properties, size = measure_at(address, position, len(records))
        if kind != RECORD:
            break
        start, stop = value_at(address, properties, properties + size, _KEY)
        if (start < stop) == keyed:
            count += 1
            if first < 0:
                first = index
        position = end
        index += 1
    return count, first
