"""The kernel that makes ReceiveMessageResponses of plain records, as :func:`..messages.deliver` would make each.

Plain are records of ordinary messages, not packed, whose properties are ASCII: see :func:`write_deliveries`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import boolean, int64

from penstock.formats.intrinsics.crc import crc32_at
from penstock.formats.intrinsics.kernel import BYTES, LONGS, OUT_BYTES, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, copy_bytes, load_i32, load_u8, store_i8, store_i32
from penstock.formats.intrinsics.text import equal_at, find_byte_at, put_digits
from penstock.formats.record import properties as names
from penstock.formats.record.kernels.pairs import hash_at, name_hash, place_of
from penstock.formats.record.kernels.scanning import ROWS
from penstock.formats.record.layout import FIXED_BYTES, SysFlag
from penstock.gateway.v2.wire.definition_pb2 import Digest, DigestType, Encoding, Message, MessageType, SystemProperties
from penstock.gateway.v2.wire.service_pb2 import ReceiveMessageResponse

from ..messages import ATTEMPT_MAX, LATER, SYSTEM_NAMES, TIME_DIGITS_MAX, TIME_MS_MAX
from .fields import CONTENT, NUMBER, is_ascii, number_bytes, put_content, put_number
from .md5 import HEX_BYTES, ROOM_BYTES, put_md5
from .texts import IPV4_BYTES, base64_bytes, put_base64, put_hex, put_ipv4

WRITTEN, OTHER_TAG, UNUSUAL = 0, 1, 2
"""What became of a record: it is an answer, it has none of the tags, it is to be looked at closely."""
HEAD_BYTES: Final = 5
"""In front of an answer, as gRPC has it: 0, and its length in 4 bytes."""
OWN_BYTES: Final = 1024
"""What an answer takes at most besides the topic, the receipt, the body and the record's properties four times."""
RECEIPT_BYTES: Final = 64
"""What a receipt's text takes at most besides 4/3 of its beginning and end."""

# What a property is for. The value of those up to TRACE is told by a field.
_KEYS, _ID, _TAG, _HOST, _TIME, _GROUP, _TRACE, _NOTHING, _CLOSELY = range(9)
_USES = {
    names.KEYS: _KEYS,
    names.UNIQ_KEY: _ID,
    names.TAGS: _TAG,
    names.BORN_HOST: _HOST,
    names.BORN_TIMESTAMP: _TIME,
    names.SHARDING_KEY: _GROUP,
    names.TRACE_CONTEXT: _TRACE,
    names.TRANSACTION_PREPARED: _CLOSELY,
    **dict.fromkeys(LATER, _CLOSELY),
}
_KNOWN = sorted(SYSTEM_NAMES | _USES.keys(), key=name_hash)
_HASHES = np.array([name_hash(name) for name in _KNOWN], np.int64)
_NAMES = np.frombuffer("".join(_KNOWN).encode(), np.uint8)
_NAME_ENDS = np.cumsum([len(name) for name in _KNOWN])
_USE_OF = np.array([_USES.get(name, _NOTHING) for name in _KNOWN], np.int64)
_IS_USERS = np.array([name not in SYSTEM_NAMES for name in _KNOWN])

_MESSAGE = ReceiveMessageResponse.DESCRIPTOR.fields_by_name["message"].number
_USER, _SYSTEM, _BODY = (
    Message.DESCRIPTOR.fields_by_name[name].number for name in ("user_properties", "system_properties", "body")
)
_NAME, _VALUE = 1, 2  # of a map
_SECONDS, _NANOS = 1, 2
_field = {field.name: field.number for field in SystemProperties.DESCRIPTOR.fields}
_TAG_FIELD, _KEYS_FIELD, _ID_FIELD, _DIGEST = (_field[name] for name in ("tag", "keys", "message_id", "body_digest"))
_ENCODING, _TYPE, _BORN_AT, _BORN_HOST = (
    _field[name] for name in ("body_encoding", "message_type", "born_timestamp", "born_host")
)
_STORED_AT, _STORE_HOST, _RECEIPT, _QUEUE_ID, _OFFSET = (
    _field[name] for name in ("store_timestamp", "store_host", "receipt_handle", "queue_id", "queue_offset")
)
_ATTEMPT, _GROUP_FIELD, _TRACE_FIELD = (_field[name] for name in ("delivery_attempt", "message_group", "trace_context"))
_DIGEST_TYPE, _CHECKSUM = (Digest.DESCRIPTOR.fields_by_name[name].number for name in ("type", "checksum"))
_MD5, _IDENTITY = int(DigestType.MD5), int(Encoding.IDENTITY)
_NORMAL, _FIFO = int(MessageType.NORMAL), int(MessageType.FIFO)

_PAIR_END, _NAME_END, _SPACE, _ZERO, _NINE = 2, 1, 0x20, 0x30, 0x39
_BORN_V6 = SysFlag.BORN_HOST_V6
_PHYSICAL_OFFSET_AT, _BORN_HOST_AT = 28, 48  # in a record
_STORE_HOST_BACK = 16 + IPV4_BYTES  # so many bytes before the body


@kernel(int64, int64, int64, int64)
def scratch_bytes(properties_size, receipt_ends_size, invisible_size):
    """What is needed to make answers of records with properties of at most that size."""
    return 4 * properties_size + 3 * (receipt_ends_size + RECEIPT_BYTES) + invisible_size + OWN_BYTES


@kernel(boolean, int64, int64, int64, int64)
def _is_named(address, start, end, place):
    """True if the known name at ``place`` stands there."""
    begin = _NAME_ENDS[place - 1] if place > 0 else 0
    size = _NAME_ENDS[place] - begin
    return size == end - start and equal_at(address, start, address_of(_NAMES), begin, size)


@kernel(boolean, int64, int64, int64, OUT_LONGS)
def _look(address, start, end, spans):
    """Note where the values of the properties ``[start, end)`` begin and end, by their uses; False: look closely."""
    spans[:] = 0
    while start < end:
        pair_end = find_byte_at(address, start, end, end, _PAIR_END)
        name_end = find_byte_at(address, start, pair_end, pair_end, _NAME_END)
        if not is_ascii(address, start, pair_end):
            return False
        if start < name_end and name_end + 1 < pair_end:
            place = place_of(_HASHES, hash_at(address, start, name_end))
            if place >= 0:
                use = _USE_OF[place]
                if use == _CLOSELY or not _is_named(address, start, name_end, place):
                    return False
                if use < _NOTHING:
                    spans[2 * use], spans[2 * use + 1] = name_end + 1, pair_end
        start = pair_end + 1
    return True


@kernel(int64, int64, int64, int64, int64, int64)
def _put_user(out, at, address, start, end):
    """Write the properties of ``[start, end)`` that are not the system's, a field each; where the next byte goes."""
    while start < end:
        pair_end = find_byte_at(address, start, end, end, _PAIR_END)
        name_end = find_byte_at(address, start, pair_end, pair_end, _NAME_END)
        if start < name_end and name_end + 1 < pair_end:
            place = place_of(_HASHES, hash_at(address, start, name_end))
            if place < 0 or _IS_USERS[place]:
                name, value = name_end - start, pair_end - name_end - 1
                store_i8(out, at, _USER << 3 | CONTENT)
                at = put_number(out, at + 1, 2 + number_bytes(name) + name + number_bytes(value) + value)
                at = put_content(out, at, _NAME, address, start, name_end)
                at = put_content(out, at, _VALUE, address, name_end + 1, pair_end)
        start = pair_end + 1
    return at


@kernel(int64, int64, int64, int64, int64)
def _put_field(out, at, number, value):
    """Write a field with a number that is not negative; where the next byte goes."""
    at = put_number(out, at, number << 3 | NUMBER)
    return put_number(out, at, value)


@kernel(int64, int64, int64, int64, int64)
def _put_time(out, at, number, milliseconds):
    """Write a field with a time since 1970, where the next byte goes."""
    seconds, nanos = milliseconds // 1000, milliseconds % 1000 * 1_000_000
    size = (1 + number_bytes(seconds) if seconds else 0) + (1 + number_bytes(nanos) if nanos else 0)
    at = put_number(out, at, number << 3 | CONTENT)
    at = put_number(out, at, size)
    if seconds:
        at = _put_field(out, at, _SECONDS, seconds)
    return _put_field(out, at, _NANOS, nanos) if nanos else at


@kernel(int64, int64, int64, int64, int64)
def _time_of(address, start, end, otherwise):
    """The time that stands there in decimal digits, none later than clients read; else ``otherwise``."""
    if start == end or end - start > TIME_DIGITS_MAX:
        return otherwise
    found = np.int64(0)
    for at in range(start, end):
        digit = load_u8(address, at)
        if digit < _ZERO or digit > _NINE:
            return otherwise
        found = found * 10 + digit - _ZERO
    return min(found, np.int64(TIME_MS_MAX))


@kernel(int64, int64, int64, int64, int64, int64)
def _put_keys(out, at, address, start, end):
    """Write a field for each of the keys, between which there are spaces; where the next byte goes."""
    while start < end:
        key_end = find_byte_at(address, start, end, end, _SPACE)
        if key_end > start:
            at = put_content(out, at, _KEYS_FIELD, address, start, key_end)
        start = key_end + 1
    return at


@kernel(boolean, int64, int64, int64, BYTES, LONGS)
def _is_one_of(address, start, end, texts, text_ends):
    """True if one of the texts stands there, and it is not empty."""
    begin = np.int64(0)
    for text_end in text_ends:
        size = text_end - begin
        if 0 < size == end - start and equal_at(address, start, address_of(texts), begin, size):
            return True
        begin = text_end
    return False


@kernel(int64, int64, int64, int64, int64, int64)
def _put_host(out, at, number, address, start):
    """Write a field with the text of an IPv4 host; where the next byte goes."""
    store_i8(out, at, number << 3 | CONTENT)
    end = put_ipv4(out, at + 2, address, start)
    store_i8(out, at + 1, end - at - 2)
    return end


@kernel(int64, int64, int64, BYTES, int64, BYTES, int64)
def _put_receipt(out, at, head, offset, tail, room):
    """Write the field with a message's receipt, for whose plain text there is ``room``; where the next byte goes."""
    copy_bytes(room, 0, address_of(head), 0, len(head))
    said = put_digits(room, len(head), offset)
    copy_bytes(room, said, address_of(tail), 0, len(tail))
    said += len(tail)
    store_i8(room, said, _SPACE)
    text = put_digits(room, said + 1, crc32_at(room, 0, said))
    store_i8(out, at, _RECEIPT << 3 | CONTENT)
    at = put_number(out, at + 1, base64_bytes(text))
    return put_base64(out, at, room, 0, text)


@kernel(
    boolean, BYTES, ROWS, LONGS, BYTES, BYTES, BYTES, BYTES, BYTES, LONGS, OUT_BYTES, OUT_BYTES, OUT_LONGS, OUT_LONGS
)
def write_deliveries(buffer, rows, again, topic, invisible, head, tail, tags, tag_ends, scratch, out, ends, kinds):
    """Make the answers of the records that ``rows`` tell of, end to end, each with its head in front.

    ``kinds`` gets what became of each record, ``ends`` where what is written of it ends in ``out``.

    ``again``: how often each was given out in its place before. ``topic`` and ``invisible``: the fields for them, of a
    message and of its system properties. ``head`` and ``tail``: what the text of a receipt says before and behind the
    offset. ``tags``: one of which a message is to have, no matter which without any. ``out`` has room for each record's
    body and four times its properties, for ``topic``, ``invisible``, 4/3 of ``head`` and ``tail``, ``RECEIPT_BYTES``
    and ``OWN_BYTES``.

    Plain is a record of a time and an offset since 0, with IPv4 hosts where they are told, no flags but those of hosts,
    ASCII in its properties, and none of these that makes it a message for later or of a transaction.

    ``scratch``: room of :func:`scratch_bytes`. It is the caller's, since Numba gives back an array of the kernel's own
    as soon as nothing but its address is used.

    Returns False, with part of it written, if ``rows`` name what is not in ``buffer``, or there is no room.
    """
    if len(again) != len(rows) or len(ends) != len(rows) or len(kinds) != len(rows):
        return False
    address, to = address_of(buffer), address_of(out)
    longest, most = np.int64(0), np.int64(len(buffer))
    for i in range(len(rows)):
        longest = max(longest, np.int64(rows[np.uint64(i)].properties_size))
    own = len(head) + len(tail) + RECEIPT_BYTES
    if len(scratch) < scratch_bytes(longest, len(head) + len(tail), len(invisible)):
        return False
    spans, digest_room = np.empty(2 * _NOTHING, np.int64), np.empty(ROOM_BYTES, np.uint8)
    made = address_of(scratch)
    room = made + len(scratch) - own
    at = np.int64(0)
    for i in range(len(rows)):
        row = rows[np.uint64(i)]
        kinds[i], ends[i] = UNUSUAL, at
        begin, body, body_size = row.position, row.body_position, np.int64(row.body_size)
        properties, properties_size = row.properties_position, np.int64(row.properties_size)
        if min(begin, body_size, properties, properties_size) < 0 or body < begin + FIXED_BYTES - 3:
            return False
        if body > most - body_size or properties > most - properties_size:
            return False
        if row.sys_flag & ~_BORN_V6 != 0 or not _look(address, properties, properties + properties_size, spans):
            continue
        if len(tag_ends) > 0 and not _is_one_of(address, spans[2 * _TAG], spans[2 * _TAG + 1], tags, tag_ends):
            kinds[i] = OTHER_TAG
            continue
        offset, queue_id, stored_ms = row.queue_offset, np.int64(row.queue_id), row.store_timestamp
        attempt = np.int64(row.reconsume_times) + 1 + again[i]
        born_ms = _time_of(address, spans[2 * _TIME], spans[2 * _TIME + 1], row.born_timestamp)
        store_host, born_host = body - _STORE_HOST_BACK, begin + _BORN_HOST_AT
        tells_host = spans[2 * _HOST + 1] > 0
        if min(offset, queue_id, stored_ms, born_ms, attempt, row.physical_offset) < 0 or attempt > ATTEMPT_MAX:
            continue
        if load_i32(address, store_host + 4) < 0 or max(stored_ms, born_ms) > TIME_MS_MAX:
            continue
        if not tells_host and (row.sys_flag & _BORN_V6 != 0 or load_i32(address, born_host + 4) < 0):
            continue
        user_end = _put_user(made, 0, address, properties, properties + properties_size)
        end = user_end
        if spans[2 * _TAG + 1] > 0:
            end = put_content(made, end, _TAG_FIELD, address, spans[2 * _TAG], spans[2 * _TAG + 1])
        end = _put_keys(made, end, address, spans[2 * _KEYS], spans[2 * _KEYS + 1])
        if spans[2 * _ID + 1] > 0:
            end = put_content(made, end, _ID_FIELD, address, spans[2 * _ID], spans[2 * _ID + 1])
        else:  # as RocketMQ's offsetMsgId
            store_i8(made, end, _ID_FIELD << 3 | CONTENT)
            store_i8(made, end + 1, 2 * (IPV4_BYTES + 8))
            end = put_hex(made, end + 2, address, store_host, store_host + IPV4_BYTES)
            end = put_hex(made, end, address, begin + _PHYSICAL_OFFSET_AT, begin + _PHYSICAL_OFFSET_AT + 8)
        store_i8(made, end, _DIGEST << 3 | CONTENT)
        store_i8(made, end + 1, 2 + 2 + HEX_BYTES)
        end = _put_field(made, end + 2, _DIGEST_TYPE, _MD5)
        store_i8(made, end, _CHECKSUM << 3 | CONTENT)
        store_i8(made, end + 1, HEX_BYTES)
        put_md5(address, body, body + body_size, made, end + 2, digest_room)
        end = _put_field(made, end + 2 + HEX_BYTES, _ENCODING, _IDENTITY)
        end = _put_field(made, end, _TYPE, _FIFO if spans[2 * _GROUP + 1] > 0 else _NORMAL)
        end = _put_time(made, end, _BORN_AT, born_ms)
        if tells_host:
            end = put_content(made, end, _BORN_HOST, address, spans[2 * _HOST], spans[2 * _HOST + 1])
        else:
            end = _put_host(made, end, _BORN_HOST, address, born_host)
        end = _put_time(made, end, _STORED_AT, stored_ms)
        end = _put_host(made, end, _STORE_HOST, address, store_host)
        end = _put_receipt(made, end, head, offset, tail, room)
        if queue_id > 0:  # the default is not written
            end = _put_field(made, end, _QUEUE_ID, queue_id)
        end = _put_field(made, end, _OFFSET, offset)
        copy_bytes(made, end, address_of(invisible), 0, len(invisible))
        end = _put_field(made, end + len(invisible), _ATTEMPT, attempt)
        if spans[2 * _GROUP + 1] > 0:
            end = put_content(made, end, _GROUP_FIELD, address, spans[2 * _GROUP], spans[2 * _GROUP + 1])
        if spans[2 * _TRACE + 1] > 0:
            end = put_content(made, end, _TRACE_FIELD, address, spans[2 * _TRACE], spans[2 * _TRACE + 1])
        system_size = end - user_end
        size = len(topic) + user_end + 1 + number_bytes(system_size) + system_size
        size += 1 + number_bytes(body_size) + body_size if body_size > 0 else 0
        whole = 1 + number_bytes(size) + size
        if whole + HEAD_BYTES > len(out) - at:
            return False
        store_i8(to, at, 0)
        store_i32(to, at + 1, whole)
        store_i8(to, at + HEAD_BYTES, _MESSAGE << 3 | CONTENT)
        at = put_number(to, at + HEAD_BYTES + 1, size)
        copy_bytes(to, at, address_of(topic), 0, len(topic))
        copy_bytes(to, at + len(topic), made, 0, user_end)
        at += len(topic) + user_end
        store_i8(to, at, _SYSTEM << 3 | CONTENT)
        at = put_number(to, at + 1, system_size)
        copy_bytes(to, at, made, user_end, system_size)
        at += system_size
        if body_size > 0:
            at = put_content(to, at, _BODY, address, body, body + body_size)
        kinds[i], ends[i] = WRITTEN, at
    return True
