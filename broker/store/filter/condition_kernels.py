"""The kernel that runs SQL92 conditions over records; see :mod:`penstock.formats.sql92` for what they mean."""

from __future__ import annotations

import numpy as np
from numba import float64, int64, types, void

from penstock.formats.intrinsics.kernel import BYTES, INTS, LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, load_u8
from penstock.formats.intrinsics.text import find_byte_at
from penstock.formats.record.kernels import measure_at
from penstock.formats.record.kernels.scanning import RECORD
from penstock.formats.sql92 import Op

_DOUBLES = types.Array(types.float64, 1, "C", readonly=True)
_STEPS = types.Array(types.int64, 2, "C", readonly=True)
_OUT = types.Array(types.int8, 1, "C")
_STACK = types.Array(types.int64, 2, "C")
_DOUBLE_STACK = types.Array(types.float64, 1, "C")
_TABLE = types.Array(types.int64, 2, "C")

_OP_NULL, _OP_BOOL, _OP_LONG, _OP_DOUBLE, _OP_TEXT, _OP_PROPERTY, _OP_NEGATE = map(int, list(Op)[:7])
_EQUAL, _UNEQUAL, _LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL = map(int, list(Op)[7:13])
_IS_NULL, _AND, _OR, _NOT, _CONTAINS, _STARTS, _ENDS, _IN, _TO_BOOL = map(int, list(Op)[13:])

# Kinds of values on the stack; columns of the stack: kind, number or 0/1, address and length of a text.
_NULL, _BOOL, _LONG, _DOUBLE, _TEXT = 0, 1, 2, 3, 4
STACK_COLUMNS = 4
_LONG_MAX = (1 << 63) - 1
_EXPONENT_MAX = 400
_TEN = np.array([10.0**power for power in range(23)])
_TRUE = np.frombuffer(b"true", np.uint8)
_UNKNOWN = 2
NO, YES, DAMAGED = 0, 1, 2
"""What is said of a record."""


@kernel(int64, int64, int64, int64, int64)
def _compare_texts(one, one_size, other, other_size):
    """Negative, 0 or positive, byte by byte."""
    for i in range(min(one_size, other_size)):
        difference = load_u8(one, i) - load_u8(other, i)
        if difference != 0:
            return difference
    return one_size - other_size


@kernel(int64, int64, int64, int64, BYTES, LONGS, _TABLE)
def _find_properties(address, start, end, names, name_ends, found):
    """Note where the values of the named properties are, the last of each: ``found[i]``: address and length.

    Answers the work, about one unit for each comparison.
    """
    count = len(name_ends)
    names_address = address_of(names)
    work = 0
    for i in range(count):
        found[i, 1] = 0
    while start < end:
        pair_end = find_byte_at(address, start, end, end, 2)
        name_end = find_byte_at(address, start, pair_end, pair_end, 1)
        size = name_end - start
        for i in range(count):
            name_start = name_ends[i - 1] if i > 0 else 0
            if (
                size == name_ends[i] - name_start
                and pair_end - name_end > 1
                and _compare_texts(address + start, size, names_address + name_start, size) == 0
            ):
                found[i, 0], found[i, 1] = address + name_end + 1, pair_end - name_end - 1
        work += count + (pair_end - start) // 16 + 1
        start = pair_end + 1
    return work


@kernel((int64, int64, float64), int64, int64)
def _number_at(address, length):
    """(kind, whole number, number) of the text, _NULL if it is no number."""
    at, sign = 0, 1
    if length > 0 and (load_u8(address, 0) == 45 or load_u8(address, 0) == 43):
        sign = -1 if load_u8(address, 0) == 45 else 1
        at = 1
    mantissa, scale, is_whole, is_full = np.int64(0), 0, True, False
    begin = at
    seen = False
    while at < length:
        byte = load_u8(address, at)
        if 48 <= byte <= 57:
            seen = True
            if not is_full and mantissa <= (_LONG_MAX - (byte - 48)) // 10:
                mantissa = mantissa * 10 + (byte - 48)
                scale -= not is_whole
            else:
                is_full = True
                scale += is_whole
        elif byte == 46 and is_whole:
            is_whole = False
        else:
            break
        at += 1
    if not seen:
        return _NULL, np.int64(0), 0.0
    if at == length and is_whole and scale == 0:
        return _LONG, sign * mantissa, float(sign * mantissa)
    exponent = np.int64(0)
    if at < length:
        byte = load_u8(address, at)
        if (byte != 101 and byte != 69) or at == begin:
            return _NULL, np.int64(0), 0.0
        at += 1
        exponent_sign = 1
        if at < length and (load_u8(address, at) == 45 or load_u8(address, at) == 43):
            exponent_sign = -1 if load_u8(address, at) == 45 else 1
            at += 1
        if at == length:
            return _NULL, np.int64(0), 0.0
        while at < length:
            byte = load_u8(address, at)
            if byte < 48 or byte > 57:
                return _NULL, np.int64(0), 0.0
            exponent = min(exponent * 10 + (byte - 48), np.int64(_EXPONENT_MAX))
            at += 1
        exponent *= exponent_sign
    exponent += scale
    number = float(mantissa)
    while exponent > 22:
        number *= _TEN[22]
        exponent -= 22
    while exponent < -22:
        number /= _TEN[22]
        exponent += 22
    number = number * _TEN[exponent] if exponent >= 0 else number / _TEN[-exponent]
    return _DOUBLE, np.int64(0), sign * number


@kernel(int64, int64, int64)
def _bool_at(address, length):
    """1 for true, in any case, and 0 for any other text."""
    if length != len(_TRUE):
        return 0
    for i in range(length):
        if load_u8(address, i) | 32 != _TRUE[i]:
            return 0
    return 1


@kernel(int64, _STACK, _DOUBLE_STACK, int64, int64)
def _compared(stack, doubles, one, op):
    """0, 1 or _UNKNOWN: the comparison of the values at ``one`` and behind it."""
    other = one + 1
    kinds = stack[one, 0], stack[other, 0]
    if kinds[0] == _NULL or kinds[1] == _NULL:
        return _UNKNOWN
    if kinds[0] == _TEXT and kinds[1] == _TEXT and op in (_EQUAL, _UNEQUAL):
        order = _compare_texts(stack[one, 2], stack[one, 3], stack[other, 2], stack[other, 3])
    elif kinds[0] == _BOOL or kinds[1] == _BOOL:
        values = stack[one, 1], stack[other, 1]
        if kinds[0] == _TEXT:
            values = _bool_at(stack[one, 2], stack[one, 3]), values[1]
        if kinds[1] == _TEXT:
            values = values[0], _bool_at(stack[other, 2], stack[other, 3])
        is_other_kind = (kinds[0] != _BOOL and kinds[0] != _TEXT) or (kinds[1] != _BOOL and kinds[1] != _TEXT)
        if is_other_kind:
            return _UNKNOWN
        order = values[0] - values[1]
    else:
        for place in (one, other):
            if stack[place, 0] == _TEXT:
                kind, whole, number = _number_at(stack[place, 2], stack[place, 3])
                if kind == _NULL:
                    return _UNKNOWN
                stack[place, 0], stack[place, 1], doubles[place] = kind, whole, number
        if stack[one, 0] == _LONG and stack[other, 0] == _LONG:
            order = np.int64(stack[one, 1] > stack[other, 1]) - np.int64(stack[one, 1] < stack[other, 1])
        else:
            left = float(stack[one, 1]) if stack[one, 0] == _LONG else doubles[one]
            right = float(stack[other, 1]) if stack[other, 0] == _LONG else doubles[other]
            order = np.int64(left > right) - np.int64(left < right)
    if op == _EQUAL:
        return np.int64(order == 0)
    if op == _UNEQUAL:
        return np.int64(order != 0)
    if op == _LESS:
        return np.int64(order < 0)
    if op == _LESS_EQUAL:
        return np.int64(order <= 0)
    if op == _GREATER:
        return np.int64(order > 0)
    return np.int64(order >= 0)


@kernel(int64, int64, int64, int64, int64, int64)
def _has_part(text, size, part, part_size, op):
    """Whether the text has the part: anywhere, at its begin or at its end; _UNKNOWN for an empty part."""
    if part_size == 0:
        return _UNKNOWN
    if part_size > size:
        return 0
    if op == _STARTS:
        return np.int64(_compare_texts(text, part_size, part, part_size) == 0)
    if op == _ENDS:
        return np.int64(_compare_texts(text + size - part_size, part_size, part, part_size) == 0)
    first = load_u8(part, 0)
    at = 0
    while at <= size - part_size:
        at = find_byte_at(text, at, size - part_size + 1, size, first)
        if at > size - part_size:
            return 0
        if _compare_texts(text + at, part_size, part, part_size) == 0:
            return 1
        at += 1
    return 0


@kernel(void, _STACK, int64, int64)
def _put_bool(stack, place, value):
    stack[place, 0] = _NULL if value == _UNKNOWN else _BOOL
    stack[place, 1] = value


@kernel(int64, _STACK, int64)
def _truth(stack, place):
    return stack[place, 1] if stack[place, 0] == _BOOL else _UNKNOWN


@kernel((int64,) * 2, _STEPS, LONGS, _DOUBLES, BYTES, LONGS, _TABLE, _STACK, _DOUBLE_STACK)
def _judge(steps, longs, numbers, texts, text_ends, found, stack, doubles):
    """(YES or NO, work) for a record whose properties are ``found``."""
    top, work = -1, len(steps)
    texts_address = address_of(texts)
    for i in range(len(steps)):
        op, argument = steps[i, 0], steps[i, 1]
        if op <= _OP_PROPERTY:
            top += 1
            if op == _OP_NULL:
                stack[top, 0] = _NULL
            elif op == _OP_BOOL:
                _put_bool(stack, top, argument)
            elif op == _OP_LONG:
                stack[top, 0], stack[top, 1] = _LONG, longs[argument]
            elif op == _OP_DOUBLE:
                stack[top, 0], doubles[top] = _DOUBLE, numbers[argument]
            elif op == _OP_TEXT:
                text_start = text_ends[argument - 1] if argument > 0 else 0
                stack[top, 2], stack[top, 3] = texts_address + text_start, text_ends[argument] - text_start
                stack[top, 0] = _TEXT
            else:
                stack[top, 2], stack[top, 3] = found[argument, 0], found[argument, 1]
                stack[top, 0] = _TEXT if found[argument, 1] > 0 else _NULL
        elif op <= _GREATER_EQUAL and op >= _EQUAL:
            top -= 1
            _put_bool(stack, top, _compared(stack, doubles, top, op))
        elif op in (_AND, _OR):
            top -= 1
            one, other = _truth(stack, top), _truth(stack, top + 1)
            decisive = 0 if op == _AND else 1
            if one == decisive or other == decisive:
                _put_bool(stack, top, decisive)
            else:
                _put_bool(stack, top, _UNKNOWN if one == _UNKNOWN or other == _UNKNOWN else 1 - decisive)
        elif op == _NOT:
            truth = _truth(stack, top)
            _put_bool(stack, top, truth if truth == _UNKNOWN else 1 - truth)
        elif op == _IS_NULL:
            _put_bool(stack, top, np.int64(stack[top, 0] == _NULL))
        elif op == _TO_BOOL:
            _put_bool(stack, top, _bool_at(stack[top, 2], stack[top, 3]) if stack[top, 0] == _TEXT else _UNKNOWN)
        elif op == _OP_NEGATE:
            if stack[top, 0] == _TEXT:
                kind, whole, number = _number_at(stack[top, 2], stack[top, 3])
                stack[top, 0], stack[top, 1], doubles[top] = kind, whole, number
            stack[top, 1], doubles[top] = -stack[top, 1], -doubles[top]
        elif op == _IN:
            is_in = np.int64(_UNKNOWN if stack[top, 0] != _TEXT else 0)
            work += steps[i, 2]
            if is_in == 0:
                for number in range(argument, argument + steps[i, 2]):
                    text_start = text_ends[number - 1] if number > 0 else 0
                    size = text_ends[number] - text_start
                    if (
                        size == stack[top, 3]
                        and _compare_texts(stack[top, 2], size, texts_address + text_start, size) == 0
                    ):
                        is_in = np.int64(1)
                        break
            _put_bool(stack, top, is_in)
        else:
            top -= 1
            if stack[top, 0] == _TEXT:
                part = _has_part(stack[top, 2], stack[top, 3], stack[top + 1, 2], stack[top + 1, 3], op)
                # At worst each place of the text is compared with all of the part.
                work += stack[top, 3] // 16 + (stack[top, 3] * stack[top + 1, 3] // 8 if op == _CONTAINS else 0)
                _put_bool(stack, top, part)
            else:
                _put_bool(stack, top, _UNKNOWN)
    return np.int64(stack[0, 0] == _BOOL and stack[0, 1] == 1), work


@kernel(
    int64,
    BYTES,
    LONGS,
    INTS,
    _STEPS,
    LONGS,
    _DOUBLES,
    BYTES,
    LONGS,
    BYTES,
    LONGS,
    _TABLE,
    _STACK,
    _DOUBLE_STACK,
    int64,
    _OUT,
)
def judge_records(
    log,
    positions,
    sizes,
    steps,
    longs,
    numbers,
    texts,
    text_ends,
    names,
    name_ends,
    found,
    stack,
    doubles,
    work_max,
    verdicts,
):
    """Say YES, NO or DAMAGED of the records at ``positions`` of ``log``; answers how many were judged.

    It ends behind bytes that are no record, and when ``work_max`` is used up; one is judged anyway. ``found``,
    ``stack`` and ``doubles`` are memory, of the sizes that the program needs.
    """
    address, work = address_of(log), 0
    for i in range(len(positions)):
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(log):
            verdicts[i] = DAMAGED
            return i + 1
        kind, _, _, _, _, _, _, properties, size = measure_at(address, start, end)
        if kind != RECORD:
            verdicts[i] = DAMAGED
            return i + 1
        work += 8 + _find_properties(address, properties, properties + size, names, name_ends, found)
        verdict, more = _judge(steps, longs, numbers, texts, text_ends, found, stack, doubles)
        verdicts[i] = verdict
        work += more
        if work >= work_max:
            return i + 1
    return len(positions)


@kernel(float64, BYTES)
def number_of(text):
    """The number that a text writes, as in a property: so that equal texts are equal numbers."""
    kind, whole, number = _number_at(address_of(text), len(text))
    return float(whole) if kind == _LONG else number
