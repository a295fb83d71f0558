"""The producer's kernel: lay out records from bodies and property strings."""

from __future__ import annotations

import numpy as np
from numba import int32, int64

from ...intrinsics.crc import crc32_at
from ...intrinsics.kernel import BYTES, INTS, LONGS, OUT_BYTES, kernel
from ...intrinsics.memory import address_of, copy_bytes, store_i8, store_i16, store_i32, store_i64, zero_bytes
from ..layout import (
    CRC_MASK,
    FIXED_BYTES,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    SysFlag,
)
from ..properties import PROPERTIES_BYTES_MAX

_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6


def encoded_bytes(
    count: int, body_bytes: int, properties_bytes: int, topic_bytes: int, sys_flags: int, born_host_bytes: int
) -> int:
    """Size of ``count`` records with these totals; ``sys_flags`` tells whether the store host will be IPv6."""
    fixed = FIXED_BYTES + topic_bytes + (1 if topic_bytes > TOPIC_BYTES_MAX_V1 else 0) + born_host_bytes - 8
    fixed += IPV6_EXTRA_BYTES if sys_flags & _STORE_V6 else 0
    return count * fixed + body_bytes + properties_bytes


@kernel(int64, OUT_BYTES, BYTES, LONGS, LONGS, BYTES, LONGS, BYTES, INTS, int32, int32, int64, BYTES)
def encode_batch(
    out,
    bodies,
    addresses,
    body_ends,
    properties,
    property_ends,
    topic,
    queue_ids,
    sys_flags,
    flag,
    born_timestamp,
    born_host,
):
    """Lay out one record per body end, into ``out`` (sized with :func:`encoded_bytes`); answers the bytes written.

    Bodies, and property strings, lie end to end; record i has ``bodies[body_ends[i - 1]:body_ends[i]]``. With
    ``addresses`` each body lies at its own instead, in memory that the caller holds; the ends tell its size. V2 is
    written for topics of more than 127 bytes. Queue offset, physical offset, store time and store host stay zero:
    the broker fills them in. The IPv6 bit of the born host follows ``born_host`` (8 or 20 bytes); that of the
    store host is the caller's, since it sets the record's size. A record that cannot be laid out (ends that go back
    or beyond the bytes, properties over 32767 bytes, no room) ends the call with -1 - i.
    """
    count = len(body_ends)
    if len(property_ends) < count or len(queue_ids) < count:
        raise ValueError("one property end and one queue id are needed per body")
    if len(addresses) != 0 and len(addresses) != count:
        raise ValueError("one address is needed per body, or none at all")
    if (len(born_host) != 8 and len(born_host) != 20) or len(topic) > TOPIC_BYTES_MAX:
        raise ValueError("a host takes 8 or 20 bytes, a topic at most 32767")
    sys_flags = sys_flags & ~_BORN_V6 | (_BORN_V6 if len(born_host) == 20 else 0)
    magic, topic_prefix = (MAGIC_V1, 1) if len(topic) <= TOPIC_BYTES_MAX_V1 else (MAGIC_V2, 2)
    store_host_bytes = 20 if sys_flags & _STORE_V6 else 8
    fixed = 56 + len(born_host) - 8 + 8 + store_host_bytes + 16 + topic_prefix + len(topic) + 2
    bodies_address = address_of(bodies)
    body_start, properties_start, start = np.int64(0), np.int64(0), np.int64(0)
    for i in range(count):
        body_end, properties_end = body_ends[i], property_ends[i]
        if body_end < body_start or (len(addresses) == 0 and body_end > len(bodies)):
            return -1 - i
        body = bodies_address + body_start if len(addresses) == 0 else addresses[i]
        if properties_end < properties_start or properties_end > len(properties):
            return -1 - i
        body_size, properties_size = body_end - body_start, properties_end - properties_start
        size = fixed + body_size + properties_size
        if properties_size > PROPERTIES_BYTES_MAX or size > RECORD_BYTES_MAX or size > len(out) - start:
            return -1 - i
        store_i32(out, start, size)
        store_i32(out, start + 4, magic)
        store_i32(out, start + 8, crc32_at(body, 0, body_end - body_start) & CRC_MASK)
        store_i32(out, start + 12, queue_ids[i])
        store_i32(out, start + 16, flag)
        store_i64(out, start + 20, 0)
        store_i64(out, start + 28, 0)
        store_i32(out, start + 36, sys_flags)
        store_i64(out, start + 40, born_timestamp)
        copy_bytes(out, start + 48, born_host, 0, len(born_host))
        at = start + 48 + len(born_host)
        # Store time, store host, reconsume times, prepared transaction offset.
        zero_bytes(out, at, 8 + store_host_bytes + 12)
        at += 8 + store_host_bytes + 12
        store_i32(out, at, body_size)
        copy_bytes(out, at + 4, body, 0, body_size)
        at += 4 + body_size
        if topic_prefix == 1:
            store_i8(out, at, len(topic))
        else:
            store_i16(out, at, len(topic))
        copy_bytes(out, at + topic_prefix, topic, 0, len(topic))
        at += topic_prefix + len(topic)
        store_i16(out, at, properties_size)
        copy_bytes(out, at + 2, properties, properties_start, properties_size)
        start += size
        body_start, properties_start = body_end, properties_end
    return start
