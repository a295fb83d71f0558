"""The kernel that writes the SendMessageResponses of messages that are stored together."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import int64, none

from penstock.formats.intrinsics.kernel import BYTES, LONGS, OUT_BYTES, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, copy_bytes, store_i8
from penstock.gateway.v2.wire.service_pb2 import SendMessageResponse, SendResultEntry

from .fields import CONTENT, NUMBER, NUMBER_BYTES_MAX, number_bytes, put_content, put_number

_ENTRIES, _ID, _TRANSACTION_ID, _OFFSET = (
    kind.DESCRIPTOR.fields_by_name[name].number
    for kind, name in (
        (SendMessageResponse, "entries"),
        (SendResultEntry, "message_id"),
        (SendResultEntry, "transaction_id"),
        (SendResultEntry, "offset"),
    )
)
ENTRY_BYTES: Final = 4 * (1 + NUMBER_BYTES_MAX)
"""What an entry takes at most, besides twice its id and its status."""


@kernel(none, BYTES, LONGS, int64, BYTES, BYTES, OUT_LONGS, OUT_BYTES)
def write_answers(request, spans, offset, status, entry_status, ends, out):
    """Write answers, each ``status`` and an entry for each of its messages, of ``request`` in their order.

    ``spans``: of :func:`.requests.read_messages`. ``offset``: the first message's in its queue; the others follow it.
    ``status`` and ``entry_status`` are the fields as a response and an entry begin with them. ``ends``: how many
    messages each answer is for; becomes where each ends in ``out``. That has room for ``len(status)`` an answer and,
    for each message, ``ENTRY_BYTES``, ``len(entry_status)`` and its id, twice.
    """
    source, to, own = address_of(request), address_of(out), address_of(entry_status)
    at, i = np.int64(0), 1
    for answer in range(len(ends)):
        copy_bytes(to, at, address_of(status), 0, len(status))
        at += len(status)
        for _ in range(ends[answer]):
            start, end = spans[2 * i], spans[2 * i + 1]
            i += 1
            size = len(entry_status) + 2 * (1 + number_bytes(end - start) + end - start)
            if offset > 0:  # the default is not written
                size += 1 + number_bytes(offset)
            store_i8(to, at, _ENTRIES << 3 | CONTENT)
            at = put_number(to, at + 1, size)
            copy_bytes(to, at, own, 0, len(entry_status))
            at = put_content(to, at + len(entry_status), _ID, source, start, end)
            at = put_content(to, at, _TRANSACTION_ID, source, start, end)
            if offset > 0:
                store_i8(to, at, _OFFSET << 3 | NUMBER)
                at = put_number(to, at + 1, offset)
            offset += 1
        ends[answer] = at
