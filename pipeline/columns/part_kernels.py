"""Kernels that gather rows by the part of a queue that they belong to, digest each part, and find light queues' rows.

The digest of a part is the exclusive or of one 64-bit number per (queue offset, physical offset, size, tags code), so
the rows may come in any order and in pieces. The mixing is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast
Splittable Pseudorandom Number Generators, 2014).
"""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint64, void

from penstock.formats.intrinsics.kernel import BYTES, INTS, LONGS, OUT_INTS, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, load_u8
from penstock.formats.intrinsics.text import equal_at, find_byte_at
from penstock.formats.record.lights import (
    COMMA,
    allows_lights_at,
    equally_long_at,
    is_light_name_at,
    lists_at,
    offset_at,
)

_FLAGS = types.Array(types.boolean, 1, "C", readonly=True)


@kernel(uint64, uint64)
def _mix(value):
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel(int64, BYTES, LONGS, INTS, INTS, LONGS, _FLAGS, OUT_INTS, OUT_INTS, OUT_INTS)
def group_rows(buffer, topics, topic_sizes, queue_ids, parts, flags, table, groups, firsts):
    """Number the sets of rows with equal topic, queue, part and flag, as they first occur; how many there are.

    ``table``: -1 everywhere, a power of two and longer than there are rows. ``groups`` gets the number of each row's
    set, ``firsts`` the first row of each set.
    """
    address = address_of(buffer)
    mask = np.int64(len(table) - 1)
    count = 0
    text = np.uint64(0)
    for i in range(len(topics)):
        size = np.int64(topic_sizes[i])
        same = i > 0 and size == topic_sizes[i - 1] and equal_at(address, topics[i], address, topics[i - 1], size)
        if not same:
            text = np.uint64(14695981039346656037)
            for at in range(topics[i], topics[i] + size):
                text = (text ^ np.uint64(load_u8(address, at))) * np.uint64(1099511628211)
        key = _mix(text ^ _mix(np.uint64(parts[i]) ^ _mix(np.uint64(queue_ids[i]))))
        slot = np.int64(key >> np.uint64(33)) & mask
        while True:
            group = table[slot]
            if group < 0:
                table[slot] = count
                groups[i], firsts[count] = count, i
                count += 1
                break
            first = firsts[group]
            if (
                queue_ids[first] == queue_ids[i]
                and parts[first] == parts[i]
                and flags[first] == flags[i]
                and topic_sizes[first] == size
                and equal_at(address, topics[i], address, topics[first], size)
            ):
                groups[i] = group
                break
            slot = (slot + 1) & mask
    return count


@kernel(void, INTS, LONGS, LONGS, INTS, LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS)
def digest_groups(groups, offsets, physical, sizes, tags, counts, first, last, total, digests, numbers):
    """Per group: how many rows, the least and greatest queue offset, the sum of the sizes, the digest, the offsets'.

    The outputs are as long as there are groups, each of which has a row; what they held before is overwritten.
    """
    counts[:] = 0
    for i in range(len(groups)):
        group = groups[i]
        offset = offsets[i]
        content = _mix(np.uint64(sizes[i]) ^ _mix(np.uint64(tags[i])))
        digest = np.int64(_mix(np.uint64(offset) ^ _mix(np.uint64(physical[i]) ^ content)))
        if counts[group] == 0:
            first[group] = last[group] = offset
            total[group] = sizes[i]
            digests[group] = digest
            numbers[group] = np.int64(_mix(np.uint64(offset)))
        else:
            first[group] = min(first[group], offset)
            last[group] = max(last[group], offset)
            total[group] += sizes[i]
            digests[group] ^= digest
            numbers[group] ^= np.int64(_mix(np.uint64(offset)))
        counts[group] += 1


@kernel(int64, int64, int64)
def digest_range(first, last):
    """What :func:`digest_groups` tells of the offsets of a group that has each from ``first`` to ``last`` once."""
    digest = np.uint64(0)
    for offset in range(first, last + 1):
        digest ^= _mix(np.uint64(offset))
    return np.int64(digest)


@kernel(int64, BYTES, LONGS, INTS)
def count_lights(buffer, properties, sizes):
    """How many light queues the records with these properties may stand in, at most."""
    address = address_of(buffer)
    total = np.int64(0)
    for i in range(len(properties)):
        end = properties[i] + sizes[i]
        names, names_end, offsets, offsets_end = lists_at(address, properties[i], end, len(buffer))
        if names < names_end and offsets < offsets_end:
            total += 1
            for at in range(names, names_end):
                total += load_u8(address, at) == COMMA
    return total


@kernel(int64, BYTES, LONGS, INTS, LONGS, INTS, OUT_INTS, OUT_LONGS, OUT_LONGS, OUT_INTS)
def find_lights(buffer, topics, topic_sizes, properties, sizes, numbers, offsets, names, name_sizes):
    """The light queues that records stand in, in the records' order; how many.

    Of each: the number of the record, its offset in the queue, where the queue's name is. The outputs are as long as
    :func:`count_lights` says. Passed over is what a broker's dispatch passes over: lists that do not fit each other,
    names that no light queue has, offsets that are no numbers; of a queue that is named twice the first offset counts.
    """
    address = address_of(buffer)
    count = np.int64(0)
    for i in range(len(properties)):
        end = properties[i] + sizes[i]
        name, list_end, offset, offsets_end = lists_at(address, properties[i], end, len(buffer))
        if name == list_end or offset == offsets_end:
            continue
        if not allows_lights_at(address, topics[i], np.int64(topic_sizes[i])):
            continue
        if not equally_long_at(address, name, list_end, offset, offsets_end):
            continue
        first = count
        while name < list_end:
            name_end = find_byte_at(address, name, list_end, len(buffer), COMMA)
            size = name_end - name
            queue_offset, offset_end = offset_at(address, offset, offsets_end)
            if queue_offset >= 0 and is_light_name_at(address, name, name_end):
                known = first
                while known < count and not (
                    name_sizes[known] == size and equal_at(address, names[known], address, name, size)
                ):
                    known += 1
                if known == count:
                    numbers[count], offsets[count] = i, queue_offset
                    names[count], name_sizes[count] = name, size
                    count += 1
            name, offset = name_end + 1, offset_end + 1
    return count
