"""Kernels for acknowledgements of what was received together: the receipts of a request, and the answer."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import int64

from penstock.formats.intrinsics.crc import crc32_at
from penstock.formats.intrinsics.kernel import BYTES, LONGS, OUT_BYTES, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, copy_bytes, load_u8, store_i8
from penstock.formats.intrinsics.text import equal_at
from penstock.formats.record.kernels.pairs import number_at as decimal_at
from penstock.gateway.v2.wire.service_pb2 import AckMessageEntry, AckMessageRequest, AckMessageResponse

from .fields import CONTENT, NUMBER_BYTES_MAX, content_at, is_ascii, put_number
from .texts import BASE64

ENTRY_BYTES: Final = 1 + NUMBER_BYTES_MAX
"""What an entry of an answer takes besides that of the request and its status."""
COMMON: Final = 4
"""Numbers of a receipt that those of one request have in common: queue, check point, epoch, end of its time."""

_GROUP, _TOPIC, _ENTRIES = (
    AckMessageRequest.DESCRIPTOR.fields_by_name[name].number << 3 | CONTENT for name in ("group", "topic", "entries")
)
_ID, _HANDLE = (
    AckMessageEntry.DESCRIPTOR.fields_by_name[name].number << 3 | CONTENT for name in ("message_id", "receipt_handle")
)
_ANSWERS = AckMessageResponse.DESCRIPTOR.fields_by_name["entries"].number << 3 | CONTENT
_SPACE, _ZERO = 0x20, 0x30
_SIX_BITS = np.full(256, -1, np.int64)
_SIX_BITS[BASE64] = range(64)
_INT32_MAX = (1 << 31) - 1


@kernel(int64, BYTES, int64, OUT_LONGS)
def find_entries(request, most, names):
    """How many entries the request has; -1: more than ``most``, or something else.

    ``names``: where group and topic begin and end.
    """
    address, at, end, count = address_of(request), np.int64(0), np.int64(len(request)), np.int64(0)
    names[:] = -1
    while at < end:
        key = load_u8(address, at)
        start, at = content_at(address, at + 1, end)
        if at < 0:
            return np.int64(-1)
        if key == _ENTRIES and count < most:
            count += 1
        elif key == _GROUP and names[0] < 0:
            names[0], names[1] = start, at
        elif key == _TOPIC and names[2] < 0:
            names[2], names[3] = start, at
        else:
            return np.int64(-1)
    return count if names[0] >= 0 and names[2] >= 0 else np.int64(-1)


@kernel(int64, int64, int64, int64, int64)
def _decoded(address, start, end, out):
    """Decode URL-safe base64 without padding; how many bytes that are; -1: something else stands there."""
    if (end - start) % 4 == 1:
        return np.int64(-1)
    bits, held, size = np.int64(0), 0, np.int64(0)
    for at in range(start, end):
        six = _SIX_BITS[load_u8(address, at)]
        if six < 0:
            return np.int64(-1)
        bits, held = bits << 6 | six, held + 6
        if held >= 8:
            held -= 8
            store_i8(out, size, bits >> held & 255)
            size += 1
            bits &= (1 << held) - 1
    return size if bits == 0 else np.int64(-1)


@kernel((int64, int64), int64, int64)
def _last_number(address, end):
    """The decimal number behind the last space before ``end``, and where that is; -1: none."""
    start = end
    while start > 0 and load_u8(address, start - 1) != _SPACE:
        start -= 1
    return decimal_at(address, start, end) if start > 0 else np.int64(-1), start - 1


@kernel(int64, int64, int64, OUT_LONGS)
def _numbers(address, size, found):
    """Take the numbers of a receipt's text, offset first; how long the rest in front of them is; -1: no receipt."""
    checksum, end = _last_number(address, size)
    if checksum != crc32_at(address, 0, end) or (load_u8(address, end + 1) == _ZERO and size - end > 2):
        return np.int64(-1)
    for i in range(COMMON, -1, -1):  # they stand at the end: queue, offset, check point, epoch, end of its time
        number, end = _last_number(address, end)
        if number < 0:
            return np.int64(-1)
        found[i] = number
    found[0], found[1] = found[1], found[0]
    return end


@kernel(int64, BYTES, OUT_BYTES, OUT_BYTES, OUT_LONGS, OUT_LONGS, OUT_LONGS)
def read_receipts(request, head, text, common, offsets, spans):
    """Take the receipts of a request of ``len(offsets)`` entries, if they are of what was received together.

    The answer is how long the beginning of their texts is that goes to ``head``: all in front of
    the numbers; -1: they are not of one such beginning, one queue and check point with ascending offsets, or not plain.
    No handle is longer than ``head``; ``text`` is room of as many bytes, and the caller's: Numba gives back an array of
    the kernel's own as soon as nothing but its address is used.
    ``common`` gets their other numbers, ``spans`` where each entry begins and ends in ``request``.
    """
    address, end, to = address_of(request), np.int64(len(request)), address_of(head)
    found, said = np.empty(COMMON + 1, np.int64), address_of(text)
    if len(text) < len(head):
        return np.int64(-1)
    at, count, head_size = np.int64(0), 0, np.int64(-1)
    while at < end:
        key = load_u8(address, at)
        start, at = content_at(address, at + 1, end)
        if key != _ENTRIES:
            continue
        spans[2 * count], spans[2 * count + 1] = start, at
        handle, handle_end, has_id = np.int64(-1), np.int64(-1), False
        while start < at:
            key = load_u8(address, start)
            inner, start = content_at(address, start + 1, at)
            if start < 0:
                return np.int64(-1)
            if key == _HANDLE and handle < 0:
                handle, handle_end = inner, start
            elif key == _ID and not has_id:
                has_id = True
                if not is_ascii(address, inner, start):
                    return np.int64(-1)
            else:
                return np.int64(-1)
        if handle < 0 or handle_end - handle > len(head):
            return np.int64(-1)
        size = _decoded(address, handle, handle_end, said)
        size = _numbers(said, size, found) if size > 0 else np.int64(-1)
        if size < 0 or found[1] > _INT32_MAX:
            return np.int64(-1)
        if count == 0:
            head_size = size
            copy_bytes(to, 0, said, 0, size)
            common[:] = found[1:]
        elif size != head_size or not equal_at(to, 0, said, 0, size) or found[0] <= offsets[count - 1]:
            return np.int64(-1)
        for i in range(COMMON):
            if common[i] != found[i + 1]:
                return np.int64(-1)
        offsets[count] = found[0]
        count += 1
    return head_size


@kernel(int64, BYTES, LONGS, BYTES, BYTES, OUT_BYTES)
def write_answers(request, spans, status, entry_status, out):
    """Write ``status``, and for each entry of the request itself with ``entry_status``; how many bytes that are.

    ``out`` has room for ``len(status)`` and, for each entry, ``ENTRY_BYTES``, itself and ``len(entry_status)``.
    """
    source, to = address_of(request), address_of(out)
    copy_bytes(to, 0, address_of(status), 0, len(status))
    at = len(status)
    for i in range(len(spans) // 2):
        start, size = spans[2 * i], spans[2 * i + 1] - spans[2 * i]
        store_i8(to, at, _ANSWERS)
        at = put_number(to, at + 1, size + len(entry_status))
        copy_bytes(to, at, source, start, size)
        copy_bytes(to, at + size, address_of(entry_status), 0, len(entry_status))
        at += size + len(entry_status)
    return at
