"""Kernels that read producer marks (:mod:`..producer_mark`): of scanned rows, and the one of a batch that comes."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, types, uint64, void

from ...intrinsics.kernel import BYTES, INTS, kernel
from ...intrinsics.memory import address_of, load_u8
from .scanning import MARK_BYTES, NEGATIVE_PROPERTIES, RECORD, ROWS, is_mark, measure_at

NUMBERS = 6
"""Of a mark: producer id, epoch, lane, sequence, count, and digest, 0 for none."""
BATCH_NUMBERS = 11
OUT_NUMBERS = types.Array(uint64, 1, "C")

MARKED, UNMARKED, WRONG_MARK, NO_RECORD, TOO_LARGE = range(5)
"""What :func:`first_mark` finds."""

_LEAST_DIGITS = (16, 1, 1, 1, 1, 16)
_MOST_DIGITS = (16, 8, 8, 16, 8, 16)


@kernel(boolean, int64, int64, int64, OUT_NUMBERS, int64)
def mark_at(address, start, end, numbers, first):
    """True if the mark in ``[start, end)``, which the property's name begins, is one: ``numbers[first:]`` are its."""
    at = start + MARK_BYTES
    for field in range(NUMBERS):
        number, digits = np.uint64(0), 0
        while at < end and digits < 17:
            byte = load_u8(address, at)
            if 48 <= byte <= 57:
                digit = byte - 48
            elif 97 <= byte <= 102:
                digit = byte - 87
            else:
                break
            number = number * np.uint64(16) + np.uint64(digit)
            digits += 1
            at += 1
        if digits < _LEAST_DIGITS[field] or digits > _MOST_DIGITS[field]:
            return False
        numbers[np.uint64(first + field)] = number
        if at == end or load_u8(address, at) == 2:
            if field == 4:
                numbers[np.uint64(first + 5)] = np.uint64(0)
            return field >= 4
        if load_u8(address, at) != 58:
            return False
        at += 1
    return False


@kernel(void, BYTES, ROWS, int64, INTS, OUT_NUMBERS)
def read_marks(buffer, rows, count, marked, numbers):
    """The batches that begin with the rows ``marked`` of ``count``, whose properties begin as a mark does.

    BATCH_NUMBERS of each: those of the mark, a count of 0 standing for no mark; the log positions where the batch
    begins and ends, as far as there are rows; its first record's store time; position and size of its topic.
    """
    address = address_of(buffer)
    for i in range(len(marked)):
        number, at = marked[np.uint64(i)], BATCH_NUMBERS * i
        row = rows[np.uint64(number)]
        start = row.properties_position
        if not mark_at(address, start, start + row.properties_size, numbers, at):
            numbers[np.uint64(at + 4)] = np.uint64(0)
            continue
        following = min(max(np.int64(numbers[np.uint64(at + 4)]), 1), count - number)
        last = rows[np.uint64(number + following - 1)]
        numbers[np.uint64(at + 6)] = np.uint64(row.physical_offset)
        numbers[np.uint64(at + 7)] = np.uint64(last.physical_offset + last.size)
        numbers[np.uint64(at + 8)] = np.uint64(row.store_timestamp)
        numbers[np.uint64(at + 9)] = np.uint64(row.topic_position)
        numbers[np.uint64(at + 10)] = np.uint64(row.topic_size)


@kernel(int64, BYTES, OUT_NUMBERS)
def first_mark(records, numbers):
    """Whether the first of ``records`` is MARKED, with the mark in ``numbers``; what is not a record is not read."""
    address = address_of(records)
    kind, _, _, _, _, _, _, start, size = measure_at(address, 0, len(records))
    if kind != RECORD:
        return TOO_LARGE if kind == NEGATIVE_PROPERTIES else NO_RECORD
    if size <= MARK_BYTES or not is_mark(address, start):
        return UNMARKED
    return MARKED if mark_at(address, start, start + size, numbers, 0) else WRONG_MARK
