"""Kernels for replies to requests.

A request is any message with the first two of these properties. Its reply is a record of the topic of replies, queue 0,
at the broker group that has the request:

| Property | Value |
|---|---|
| ``CORRELATION_ID`` | chosen by the requester; the reply says the same |
| ``REPLY_TO_CLIENT`` | client id of the requester; the reply says the same |
| ``TTL`` | so many ms the requester waits; the reply says the same |
| ``MSG_TYPE`` | ``reply``, of the reply alone |
| ``PUSH_REPLY_TIME``, ``ARRIVE_TIME`` | when it was sent and got by the requester, in ms since 1970; not stored |

Source: RocketMQ ``RequestResponseFuture``, ``MessageUtil#createReplyMessage``, ``ReplyMessageProcessor``.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import int64, void

from ..intrinsics.kernel import BYTES, INTS, LONGS, OUT_LONGS, kernel
from ..intrinsics.memory import address_of, load_u8
from .kernels.pairs import hash_at, pair_name, value_at
from .kernels.scanning import RECORD, measure_at
from .properties import CORRELATION_ID, MESSAGE_TYPE, REPLY_TO_CLIENT


class ReplyStatus(IntEnum):
    """How :func:`check_replies` ends."""

    OK = 0
    NO_RECORD = 1
    NOT_A_REPLY = 2
    BAD_CORRELATION = 3
    BAD_CLIENT = 4


REPLY_TYPE = "reply"
CORRELATION_BYTES_MAX = 255
CLIENT_BYTES_MAX = 255
_OK, _NO_RECORD, _NOT_A_REPLY, _BAD_CORRELATION, _BAD_CLIENT = map(int, ReplyStatus)
_CORRELATION, _CLIENT, _TYPE = pair_name(CORRELATION_ID), pair_name(REPLY_TO_CLIENT), pair_name(MESSAGE_TYPE)
_REPLY = np.frombuffer(REPLY_TYPE.encode(), np.uint8)


@kernel((int64,) * 2, BYTES)
def check_replies(records):
    """(ReplyStatus, index of the bad record) of records that are to be replies."""
    address, position, index = address_of(records), 0, 0
    while position < len(records):
        kind, end, _, _, _, _, _, properties, size = measure_at(address, position, len(records))
        if kind != RECORD:
            return _NO_RECORD, index
        limit = properties + size
        start, stop = value_at(address, properties, limit, _TYPE)
        if stop - start != len(_REPLY):
            return _NOT_A_REPLY, index
        for i in range(len(_REPLY)):
            if load_u8(address, start + i) != _REPLY[i]:
                return _NOT_A_REPLY, index
        start, stop = value_at(address, properties, limit, _CORRELATION)
        if not 0 < stop - start <= CORRELATION_BYTES_MAX:
            return _BAD_CORRELATION, index
        start, stop = value_at(address, properties, limit, _CLIENT)
        if not 0 < stop - start <= CLIENT_BYTES_MAX:
            return _BAD_CLIENT, index
        position = end
        index += 1
    return _OK, index


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS)
def clients_of(log, positions, sizes, clients):
    """Hashes of the client ids that the records at ``positions`` of ``log`` are for; 0 where one names none."""
    address = address_of(log)
    for i in range(len(positions)):
        clients[i] = 0
        start, limit = positions[i], positions[i] + sizes[i]
        if start < 0 or limit > len(log):
            continue
        kind, _, _, _, _, _, _, properties, size = measure_at(address, start, limit)
        if kind == RECORD:
            value, value_end = value_at(address, properties, properties + size, _CLIENT)
            clients[i] = hash_at(address, value, value_end)
