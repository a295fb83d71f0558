"""What records are rewritten with, whatever they become."""

from __future__ import annotations

from numba import boolean, int64

from ...intrinsics.kernel import BYTES, OUT_BYTES, kernel
from ...intrinsics.memory import address_of, copy_bytes, load_i32, store_i8, store_i16, store_i32
from ..kernels.pairs import PAIR_END
from ..layout import MAGIC_V1, MAGIC_V2, TOPIC_BYTES_MAX_V1

_TIME_DIGITS = 13


@kernel(int64, OUT_BYTES, int64, int64, BYTES)
def put_topic(out, at, behind, topic):
    """Write ``topic`` at ``behind`` of the record that begins at ``at``; where its properties begin."""
    if len(topic) <= TOPIC_BYTES_MAX_V1:
        store_i32(out, at + 4, MAGIC_V1)
        store_i8(out, behind, len(topic))
        behind += 1
    else:
        store_i32(out, at + 4, MAGIC_V2)
        store_i16(out, behind, len(topic))
        behind += 2
    copy_bytes(out, behind, topic, 0, len(topic))
    return behind + len(topic) + 2


@kernel(int64, OUT_BYTES, int64, BYTES, int64)
def put_time(out, at, name, milliseconds):
    """Write a property whose value is a time of 13 digits; ``name`` with its separator. The new end."""
    copy_bytes(out, at, name, 0, len(name))
    at += len(name)
    for i in range(_TIME_DIGITS):
        store_i8(out, at + _TIME_DIGITS - 1 - i, 48 + milliseconds % 10)
        milliseconds //= 10
    at += _TIME_DIGITS
    store_i8(out, at, PAIR_END)
    return at + 1


@kernel(boolean, BYTES, int64, OUT_BYTES)
def put_queues(records, queues, out):
    """Write sound records to ``out``, which is as long, with others for the queues that are not there any more.

    False: none of them is of such a queue, and nothing was written. ``queues``: how many there are.
    """
    address, start, is_written = address_of(records), 0, False
    while start < len(records):
        queue_id = load_i32(address, start + 12)
        if queue_id >= queues:
            if not is_written:
                copy_bytes(out, 0, records, 0, len(records))
                is_written = True
            store_i32(out, start + 12, queue_id % queues)
        start += load_i32(address, start)
    return is_written
