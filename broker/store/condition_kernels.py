"""The kernel that runs SQL92 conditions over the properties of records; see :mod:`.sql92` for what they mean."""

# Kernels are typed by their Numba signatures.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit, types

from penstock.proto.record.freshness import drop_stale_kernels
from penstock.proto.record.kernels import measure_at
from penstock.proto.record.memory import address_of, load_u8
from penstock.proto.record.scanning import RECORD
from penstock.proto.record.text import find_byte_at

from .sql92 import Op

drop_stale_kernels(__file__)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_LONGS = types.Array(types.int64, 1, "C", readonly=True)
_INTS = types.Array(types.int32, 1, "C", readonly=True)
_DOUBLES = types.Array(types.float64, 1, "C", readonly=True)
_STEPS = types.Array(types.int64, 2, "C", readonly=True)
_OUT = types.Array(types.boolean, 1, "C")
_STACK = types.Array(types.int64, 2, "C")
_DOUBLE_STACK = types.Array(types.float64, 1, "C")

_OP_NULL, _OP_BOOL, _OP_LONG, _OP_DOUBLE, _OP_TEXT, _OP_PROPERTY, _OP_NEGATE = map(int, list(Op)[:7])
_EQUAL, _UNEQUAL, _LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL = map(int, list(Op)[7:13])
_IS_NULL, _AND, _OR, _NOT, _CONTAINS, _STARTS, _ENDS, _IN, _TO_BOOL = map(int, list(Op)[13:])

# Kinds of values on the stack; columns of the stack: kind, number or 0/1, address and length of a text.
_NULL, _BOOL, _LONG, _DOUBLE, _TEXT = 0, 1, 2, 3, 4
STACK_COLUMNS = 4
_DIGITS_MAX = 18
_EXPONENT_MAX = 400
_TEN = np.array([10.0**power for power in range(23)])
_TRUE, _FALSE = np.frombuffer(b"true", np.uint8), np.frombuffer(b"false", np.uint8)
_UNKNOWN, _NOT_TEN = 2, -1


@njit([types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64, _BYTES)], nogil=True, cache=True)
def _find_property(address, start, end, name):
    """(position, length) of the last value with that name, which ends with the separator; length 0 without one."""
    found, length, size = end, 0, len(name)
    while start < end:
        pair_end = find_byte_at(address, start, end, end, 2)
        if pair_end - start > size:
            is_it = True
            for i in range(size):
                if load_u8(address, start + i) != name[i]:
                    is_it = False
                    break
            if is_it:
                found, length = start + size, pair_end - start - size
        start = pair_end + 1
    return found, length


@njit([types.Tuple((types.int64, types.int64, types.float64))(types.int64, types.int64)], nogil=True, cache=True)
def _number_at(address, length):
    """(kind, whole number, number) of the text, _NULL if it is none."""
    at, sign = 0, 1
    if length > 0 and (load_u8(address, 0) == 45 or load_u8(address, 0) == 43):
        sign = -1 if load_u8(address, 0) == 45 else 1
        at = 1
    mantissa, digits, scale, is_whole = np.int64(0), 0, 0, True
    begin = at
    seen = False
    while at < length:
        byte = load_u8(address, at)
        if 48 <= byte <= 57:
            seen = True
            if digits < _DIGITS_MAX:
                mantissa = mantissa * 10 + (byte - 48)
                digits += mantissa != 0
                scale -= not is_whole
            else:
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


@njit([types.int64(types.int64, types.int64, types.int64, types.int64)], nogil=True, cache=True)
def _compare_texts(one, one_size, other, other_size):
    """Negative, 0 or positive, byte by byte."""
    for i in range(min(one_size, other_size)):
        difference = load_u8(one, i) - load_u8(other, i)
        if difference != 0:
            return difference
    return one_size - other_size


@njit([types.int64(types.int64, types.int64)], nogil=True, cache=True)
def _bool_at(address, length):
    """1 for true and 0 for false, in any case; _UNKNOWN for any other text."""
    for value in (1, 0):
        word = _TRUE if value == 1 else _FALSE
        if length == len(word):
            is_it = True
            for i in range(length):
                if load_u8(address, i) | 32 != word[i]:
                    is_it = False
                    break
            if is_it:
                return value
    return _UNKNOWN


@njit([types.int64(_STACK, _DOUBLE_STACK, types.int64, types.int64)], nogil=True, cache=True)
def _compared(stack, doubles, one, op):
    """0, 1 or _UNKNOWN: the comparison of the values at ``one`` and behind it."""
    other = one + 1
    kinds = stack[one, 0], stack[other, 0]
    if kinds[0] == _NULL or kinds[1] == _NULL:
        return _UNKNOWN
    if kinds[0] == _TEXT and kinds[1] == _TEXT:
        order = _compare_texts(stack[one, 2], stack[one, 3], stack[other, 2], stack[other, 3])
    elif kinds[0] == _BOOL or kinds[1] == _BOOL:
        values = stack[one, 1], stack[other, 1]
        if kinds[0] == _TEXT:
            values = _bool_at(stack[one, 2], stack[one, 3]), values[1]
        if kinds[1] == _TEXT:
            values = values[0], _bool_at(stack[other, 2], stack[other, 3])
        is_other_kind = (kinds[0] != _BOOL and kinds[0] != _TEXT) or (kinds[1] != _BOOL and kinds[1] != _TEXT)
        if is_other_kind or values[0] == _UNKNOWN or values[1] == _UNKNOWN:
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


@njit([types.int64(types.int64, types.int64, types.int64, types.int64, types.int64)], nogil=True, cache=True)
def _has_part(text, size, part, part_size, op):
    """Whether the text has the part: anywhere, at its begin or at its end."""
    if part_size > size:
        return 0
    first, last = 0, size - part_size
    if op == _STARTS:
        last = 0
    elif op == _ENDS:
        first = last
    for at in range(first, last + 1):
        if _compare_texts(text + at, part_size, part, part_size) == 0:
            return 1
    return 0


@njit([types.void(_STACK, types.int64, types.int64)], nogil=True, cache=True)
def _put_bool(stack, place, value):
    stack[place, 0] = _NULL if value == _UNKNOWN else _BOOL
    stack[place, 1] = value


@njit([types.int64(_STACK, types.int64)], nogil=True, cache=True)
def _truth(stack, place):
    return stack[place, 1] if stack[place, 0] == _BOOL else _UNKNOWN


@njit(
    [
        types.boolean(
            types.int64, types.int64, types.int64, _STEPS, _LONGS, _DOUBLES, _BYTES, _LONGS, _STACK, _DOUBLE_STACK
        )
    ],
    nogil=True,
    cache=True,
)
def _is_true(address, start, end, steps, longs, numbers, texts, text_ends, stack, doubles):
    """Whether the condition holds for the properties ``[start, end)`` behind ``address``."""
    top = -1
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
            else:
                text_start = text_ends[argument - 1] if argument > 0 else 0
                if op == _OP_TEXT:
                    stack[top, 2], stack[top, 3] = texts_address + text_start, text_ends[argument] - text_start
                    stack[top, 0] = _TEXT
                else:
                    found, length = _find_property(address, start, end, texts[text_start : text_ends[argument]])
                    stack[top, 2], stack[top, 3] = address + found, length
                    stack[top, 0] = _TEXT if length > 0 else _NULL
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
                _put_bool(stack, top, part)
            else:
                _put_bool(stack, top, _UNKNOWN)
    return stack[0, 0] == _BOOL and stack[0, 1] == 1


@njit(
    [types.void(_BYTES, _LONGS, _INTS, _STEPS, _LONGS, _DOUBLES, _BYTES, _LONGS, _STACK, _DOUBLE_STACK, _OUT)],
    nogil=True,
    cache=True,
)
def select_records(log, positions, sizes, steps, longs, numbers, texts, text_ends, stack, doubles, chosen):
    """For which of the records at ``positions`` of ``log`` the condition holds; not for what is no record.

    ``stack`` and ``doubles`` are memory, one row per value; the program was made for their depth.
    """
    address = address_of(log)
    for i in range(len(positions)):
        start, end = positions[i], positions[i] + sizes[i]
        chosen[i] = False
        if start < 0 or end > len(log):
            continue
        kind, _, _, _, _, _, _, properties, size = measure_at(address, start, end)
        if kind == RECORD:
            chosen[i] = _is_true(
                address, properties, properties + size, steps, longs, numbers, texts, text_ends, stack, doubles
            )
