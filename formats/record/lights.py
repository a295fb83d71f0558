"""Inside kernels: which light queues (LMQ) a record names, and its offsets there.

Two properties of a record say it, lists of the same length with ``,`` between: ``INNER_MULTI_DISPATCH`` names light
queues (``%LMQ%…``, queue 0 each), which a producer writes; ``INNER_MULTI_QUEUE_OFFSET`` holds the record's offset in
each of them, which the broker writes when it appends. Of a queue that is named twice the first offset counts. Retry
topics and those of the broker have none.
Source: RocketMQ ``LmqDispatch``, ``MultiDispatchUtils``, ``MixAll#topicAllowsLMQ``; differs: halves of transactions,
and those that were given up, have none, since their readers would see what nobody has committed.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64

from penstock.proto.names import HALF_TOPIC, PARKED_TOPIC, SCHEDULE_TOPIC

from ..intrinsics.kernel import kernel
from ..intrinsics.memory import load_i32, load_i64, load_u8
from ..intrinsics.text import find_byte_at
from .layout import RECORD_CRC_PREFIX
from .properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET

OTHER_PAIR, DISPATCH_PAIR, OFFSET_PAIR, CRC_PAIR = 0, 1, 2, 3
"""What :func:`kind_at` answers."""
COMMA, END_OF_PAIR = ord(","), 2
_NAME_MAX = 255
_DIGITS_MAX = 18


def _number(text: bytes) -> int:
    return int.from_bytes(text, "big", signed=True)


_DISPATCH, _OFFSETS = INNER_MULTI_DISPATCH.encode(), INNER_MULTI_QUEUE_OFFSET.encode()
_DISPATCH_BYTES, _OFFSETS_BYTES = len(_DISPATCH), len(_OFFSETS)
assert (_DISPATCH_BYTES, _OFFSETS_BYTES) == (20, 24)
_HEAD = _number(_DISPATCH[:8])
_DISPATCH_2, _DISPATCH_3 = _number(_DISPATCH[8:16]), _number(_DISPATCH[16:])
_OFFSETS_2, _OFFSETS_3 = _number(_OFFSETS[8:16]), _number(_OFFSETS[16:])
_CRC_HEAD = _number(RECORD_CRC_PREFIX[:8])
_PREFIX_HEAD, _PREFIX_TAIL = _number(b"%LMQ"), ord("%")
_SYSTEM_HEAD, _TRANSACTIONS_HEAD = _number(b"rmq_sys_"), _number(b"RMQ_SYS_")
assert HALF_TOPIC.encode().startswith(b"RMQ_SYS_")
_RETRY_HEAD, _RETRY_TAIL = _number(b"%RET"), _number(b"TRY%")
_SCHEDULE = SCHEDULE_TOPIC.encode()
_SCHEDULE_BYTES = len(_SCHEDULE)
_PARKED = PARKED_TOPIC.encode()
_PARKED_BYTES = len(_PARKED)
assert _PARKED_BYTES == 26
_PARKED_1, _PARKED_2, _PARKED_3, _PARKED_4 = (_number(_PARKED[at : at + 8]) for at in (0, 8, 16, 18))
_SCHEDULE_1, _SCHEDULE_2, _SCHEDULE_3 = _number(_SCHEDULE[:8]), _number(_SCHEDULE[8:16]), _number(_SCHEDULE[11:])


@kernel(int64, int64, int64, int64)
def kind_at(address, start, pair_end):
    """Which property stands in ``[start, pair_end)``; its name and separator at least are there."""
    size = pair_end - start
    if size <= 9:
        return OTHER_PAIR
    head = load_i64(address, start)
    if head == _HEAD and size > _DISPATCH_BYTES:
        if (
            load_i64(address, start + 8) == _DISPATCH_2
            and load_i32(address, start + 16) == _DISPATCH_3
            and load_u8(address, start + _DISPATCH_BYTES) == 1
        ):
            return DISPATCH_PAIR
        if (
            size > _OFFSETS_BYTES
            and load_i64(address, start + 8) == _OFFSETS_2
            and load_i64(address, start + 16) == _OFFSETS_3
            and load_u8(address, start + _OFFSETS_BYTES) == 1
        ):
            return OFFSET_PAIR
    if head == _CRC_HEAD and load_u8(address, start + 8) == 1:
        return CRC_PAIR
    return OTHER_PAIR


@kernel((int64,) * 4, int64, int64, int64, int64)
def lists_at(address, start, end, readable):
    """(names start, end, offsets start, end) in the properties ``[start, end)``; empty where there are none.

    Of a repeated property the last with a value counts. Separators at a list's end separate nothing, as in Java.
    """
    names = names_end = offsets = offsets_end = end
    while end - start > _DISPATCH_BYTES + 1:
        pair_end = find_byte_at(address, start, end, readable, END_OF_PAIR)
        kind = kind_at(address, start, pair_end)
        if kind == DISPATCH_PAIR and pair_end - start > _DISPATCH_BYTES + 1:
            names, names_end = start + _DISPATCH_BYTES + 1, pair_end
        elif kind == OFFSET_PAIR and pair_end - start > _OFFSETS_BYTES + 1:
            offsets, offsets_end = start + _OFFSETS_BYTES + 1, pair_end
        start = pair_end + 1
    while names_end > names and load_u8(address, names_end - 1) == COMMA:
        names_end -= 1
    while offsets_end > offsets and load_u8(address, offsets_end - 1) == COMMA:
        offsets_end -= 1
    return names, names_end, offsets, offsets_end


@kernel(boolean, int64, int64, int64)
def allows_lights_at(address, topic, size):
    """True if records of that topic may stand in light queues: not retry topics, nor those of the broker."""
    if size >= 8:
        head = load_i64(address, topic)
        if head in (_SYSTEM_HEAD, _TRANSACTIONS_HEAD) or (
            load_i32(address, topic) == _RETRY_HEAD and load_i32(address, topic + 3) == _RETRY_TAIL
        ):
            return False
        if size == _SCHEDULE_BYTES and head == _SCHEDULE_1:
            return load_i64(address, topic + 8) != _SCHEDULE_2 or load_i64(address, topic + 11) != _SCHEDULE_3
        if size == _PARKED_BYTES and head == _PARKED_1:
            return (
                load_i64(address, topic + 8) != _PARKED_2
                or load_i64(address, topic + 16) != _PARKED_3
                or load_i64(address, topic + 18) != _PARKED_4
            )
    return True


@kernel(boolean, int64, int64, int64)
def is_light_name_at(address, start, end):
    """True if ``[start, end)`` is ``%LMQ%`` and more, of the signs that a topic may have."""
    if not 5 < end - start <= _NAME_MAX:
        return False
    if load_i32(address, start) != _PREFIX_HEAD or load_u8(address, start + 4) != _PREFIX_TAIL:
        return False
    for i in range(start + 5, end):
        byte = load_u8(address, i)
        letter = 97 <= byte | 32 <= 122
        # digits and % - _ |
        if not (letter or 48 <= byte <= 57 or byte == 37 or byte == 45 or byte == 95 or byte == 124):
            return False
    return True


@kernel((int64,) * 2, int64, int64, int64)
def offset_at(address, start, end):
    """(the number in ``[start, list end)`` up to its separator, where that is); -1 if that is no number."""
    at, number = start, np.int64(0)
    while at < end and load_u8(address, at) != COMMA:
        digit = load_u8(address, at) - 48
        if digit < 0 or digit > 9 or at - start >= _DIGITS_MAX:
            number = np.int64(-1)
        elif number >= 0:
            number = number * 10 + digit
        at += 1
    return (number if at > start else np.int64(-1)), at


@kernel(boolean, int64, int64, int64, int64, int64)
def equally_long_at(address, names, names_end, offsets, offsets_end):
    """True if the two lists behind ``address`` have as many parts."""
    difference = np.int64(0)
    for at in range(names, names_end):
        difference += load_u8(address, at) == COMMA
    for at in range(offsets, offsets_end):
        difference -= load_u8(address, at) == COMMA
    return difference == 0
