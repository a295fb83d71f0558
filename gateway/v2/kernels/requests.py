"""The kernel that takes the plain messages of a SendMessageRequest, as :func:`..messages.draft_of` would take each.

Plain are normal messages of visible ASCII with nothing that is checked more closely: see :func:`read_messages`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import boolean, int64

from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, copy_bytes, load_u8, store_i8
from penstock.formats.intrinsics.text import equal_at, put_digits
from penstock.formats.record import properties as names
from penstock.formats.record.kernels.pairs import hash_at, name_hash, pair_name, place_of
from penstock.gateway.v2.wire.definition_pb2 import Encoding, Message, MessageType, SystemProperties
from penstock.gateway.v2.wire.service_pb2 import SendMessageRequest

from ..messages import BODY_BYTES_MAX, MESSAGE_ID_LENGTH_MAX, PROPERTIES_BYTES_MAX, SYSTEM_NAMES, TIME_MS_MAX
from .fields import CONTENT, NUMBER, content_at, has_byte, is_visible, number_at

USER_PROPERTIES_MAX: Final = 32
"""Of a plain message."""
HOST_BYTES_MAX: Final = 255
OWN_BYTES: Final = 128
"""What the names of our properties and the time of birth take at most, in one property string."""


def _key(kind, field, form=CONTENT):
    """What a field begins with."""
    return kind.DESCRIPTOR.fields_by_name[field].number << 3 | form


_MESSAGES = _key(SendMessageRequest, "messages")
_TOPIC, _USER, _SYSTEM, _BODY = (
    _key(Message, name) for name in ("topic", "user_properties", "system_properties", "body")
)
_NAME, _VALUE = 1 << 3 | CONTENT, 2 << 3 | CONTENT  # of a map
_TAG, _KEYS, _ID, _BORN_AT, _BORN_HOST = (
    _key(SystemProperties, name) for name in ("tag", "keys", "message_id", "born_timestamp", "born_host")
)
_ENCODING, _TYPE, _QUEUE_ID = (
    _key(SystemProperties, name, NUMBER) for name in ("body_encoding", "message_type", "queue_id")
)
assert max(_SYSTEM, _BODY, _BORN_HOST, _QUEUE_ID) < 128  # one byte each
_SECONDS, _NANOS = 1 << 3, 2 << 3
_PLAIN_ENCODING, _PLAIN_TYPE = int(Encoding.IDENTITY), int(MessageType.NORMAL)  # and none at all

_TAGS_PAIR, _KEYS_PAIR, _ID_PAIR = pair_name(names.TAGS), pair_name(names.KEYS), pair_name(names.UNIQ_KEY)
_HOST_PAIR, _TIME_PAIR = pair_name(names.BORN_HOST), pair_name(names.BORN_TIMESTAMP)
_PAIR_END, _NAME_END = 2, 1
_SPACE, _BAR = 0x20, 0x7C
_RESERVED = np.sort(
    np.array([name_hash(name) for name in SYSTEM_NAMES | names.RESERVED | names.UNKEPT | {names.SHARDING_KEY}])
)
"""Hashes of what no property of a plain message is called; another name with one of these hashes is read elsewhere."""
_TRANSIENT = np.frombuffer(names.TRANSIENT_PREFIX.encode(), np.uint8)
_NOT_PLAIN = (-1,) * 7


@kernel((int64,) * 3, BYTES)
def count_messages(request):
    """How many messages the request holds, and where the first one's topic begins and ends.

    (-1, 0, 0): it holds something else. The topic's ends are 0 where it is not what the message begins with.
    """
    address, at, end, count = address_of(request), np.int64(0), np.int64(len(request)), np.int64(0)
    topic, topic_end = np.int64(0), np.int64(0)
    while at < end:
        if load_u8(address, at) != _MESSAGES:
            return np.int64(-1), np.int64(0), np.int64(0)
        start, at = content_at(address, at + 1, end)
        if at < 0:
            return np.int64(-1), np.int64(0), np.int64(0)
        if count == 0 and start < at and load_u8(address, start) == _TOPIC:
            topic, topic_end = content_at(address, start + 1, at)
            if topic < 0:
                return np.int64(-1), np.int64(0), np.int64(0)
        count += 1
    return count, topic, topic_end


@kernel(boolean, int64, int64, int64)
def _is_reserved(address, start, end):
    """True if the system may know a property of that name."""
    if end - start >= len(_TRANSIENT):
        i = 0
        while i < len(_TRANSIENT) and load_u8(address, start + i) == _TRANSIENT[i]:
            i += 1
        if i == len(_TRANSIENT):
            return True
    return place_of(_RESERVED, hash_at(address, start, end)) >= 0


@kernel(int64, int64, int64, BYTES, int64, int64, int64)
def _put_pair(out, at, name, source, start, end):
    """Write a pair, whose value is at ``source``; where the next byte goes."""
    copy_bytes(out, at, address_of(name), 0, len(name))
    at += len(name)
    copy_bytes(out, at, source, start, end - start)
    at += end - start
    store_i8(out, at, _PAIR_END)
    return at + 1


@kernel(int64, int64, int64, int64)
def _milliseconds(address, at, end):
    """The time since 1970 that a Timestamp holds; -1: none that is kept, or not plainly written."""
    seconds, nanos = np.int64(-1), np.int64(-1)
    while at < end:
        key = load_u8(address, at)
        value, at = number_at(address, at + 1, end)
        if value < 0:
            return value
        if key == _SECONDS and seconds < 0:
            seconds = value
        elif key == _NANOS and nanos < 0:
            nanos = value
        else:
            return np.int64(-1)
    seconds, nanos = max(seconds, np.int64(0)), max(nanos, np.int64(0))
    if seconds > TIME_MS_MAX // 1000 or nanos >= 1_000_000_000:
        return np.int64(-1)
    return seconds * 1000 + nanos // 1_000_000


@kernel((int64,) * 7, int64, int64, int64)
def _system(address, at, end):
    """Of plain system properties where tag, message id and host of birth begin and end, and the time of birth.

    0 for both ends of what there is not; -1 for the time. The first is -1 where they are not plain.
    """
    tag, tag_end, message_id, message_id_end = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    host, host_end, born_ms = np.int64(0), np.int64(0), np.int64(-1)
    has_encoding, has_type, has_queue = False, False, False
    while at < end:
        key = load_u8(address, at)
        if key in (_ENCODING, _TYPE, _QUEUE_ID):
            value, at = number_at(address, at + 1, end)
            if value < 0:
                return _NOT_PLAIN
            if key == _ENCODING and not has_encoding and value in (0, _PLAIN_ENCODING):
                has_encoding = True
            elif key == _TYPE and not has_type and value in (0, _PLAIN_TYPE):
                has_type = True
            elif key == _QUEUE_ID and not has_queue:
                has_queue = True
            else:
                return _NOT_PLAIN
            continue
        start, at = content_at(address, at + 1, end)
        if at < 0:
            return _NOT_PLAIN
        if key == _BORN_AT and born_ms < 0:
            born_ms = _milliseconds(address, start, at)
            if born_ms < 0:
                return _NOT_PLAIN
            continue
        if not is_visible(address, start, at):
            return _NOT_PLAIN
        if key == _KEYS:
            if has_byte(address, start, at, _SPACE):
                return _NOT_PLAIN
        elif key == _TAG and tag_end == 0:
            if has_byte(address, start, at, _SPACE) or has_byte(address, start, at, _BAR):
                return _NOT_PLAIN
            tag, tag_end = start, at
        elif key == _ID and message_id_end == 0:
            if start == at or at - start > MESSAGE_ID_LENGTH_MAX or has_byte(address, start, at, _SPACE):
                return _NOT_PLAIN
            message_id, message_id_end = start, at
        elif key == _BORN_HOST and host_end == 0:
            if at - start > HOST_BYTES_MAX or has_byte(address, start, at, _SPACE):
                return _NOT_PLAIN
            host, host_end = start, at
        else:
            return _NOT_PLAIN
    if message_id_end == 0:
        return _NOT_PLAIN
    return tag, tag_end, message_id, message_id_end, host, host_end, born_ms


@kernel((int64, int64), int64, int64, int64, int64, int64)
def _put_keys(address, at, end, out, out_at):
    """Write the keys of plain system properties, as one pair; where the next byte goes, and the keys' own bytes."""
    size = np.int64(0)
    while at < end:
        key = load_u8(address, at)
        if key in (_ENCODING, _TYPE, _QUEUE_ID):
            _, at = number_at(address, at + 1, end)
            continue
        start, at = content_at(address, at + 1, end)
        if key != _KEYS or start == at:
            continue
        if size == 0:
            copy_bytes(out, out_at, address_of(_KEYS_PAIR), 0, len(_KEYS_PAIR))
            out_at += len(_KEYS_PAIR)
        else:
            store_i8(out, out_at, _SPACE)
            out_at += 1
        copy_bytes(out, out_at, address, start, at - start)
        out_at += at - start
        size += at - start
    if size > 0:
        store_i8(out, out_at, _PAIR_END)
        out_at += 1
    return out_at, size


@kernel((int64, int64), int64, int64, int64, int64, int64, OUT_LONGS)
def _put_user(address, at, end, out, out_at, hashes):
    """Write a plain message's own properties; where the next byte goes, and their bytes without separators.

    (-1, -1): one of them is not plain.
    """
    count, size = np.int64(0), np.int64(0)
    not_plain = np.int64(-1), np.int64(-1)
    while at < end:
        key = load_u8(address, at)
        start, at = content_at(address, at + 1, end)
        if key != _USER:
            continue
        if count == len(hashes) or start == at or load_u8(address, start) != _NAME:
            return not_plain
        name, name_end = content_at(address, start + 1, at)
        if name_end < 0 or name == name_end or name_end == at or load_u8(address, name_end) != _VALUE:
            return not_plain
        value, value_end = content_at(address, name_end + 1, at)
        if value_end != at or not is_visible(address, name, name_end) or not is_visible(address, value, value_end):
            return not_plain
        if _is_reserved(address, name, name_end):
            return not_plain
        hashes[count] = hash_at(address, name, name_end)
        for i in range(count):
            if hashes[i] == hashes[count]:  # the same name twice
                return not_plain
        count += 1
        size += name_end - name + value_end - value
        if value == value_end:
            continue
        copy_bytes(out, out_at, address, name, name_end - name)
        out_at += name_end - name
        store_i8(out, out_at, _NAME_END)
        copy_bytes(out, out_at + 1, address, value, value_end - value)
        out_at += 1 + value_end - value
        store_i8(out, out_at, _PAIR_END)
        out_at += 1
    return out_at, size


@kernel(int64, BYTES, BYTES, OUT_BYTES, OUT_LONGS, OUT_BYTES, OUT_LONGS, OUT_LONGS)
def read_messages(request, caller, bodies, body_ends, properties, property_ends, spans):
    """Take the messages of a request of ``len(body_ends)`` messages; how many come before one that is not plain.

    ``caller``: the host that messages were born at that name none; empty: each has to. Bodies and property strings go
    to their columns: ``bodies`` has ``len(request)`` bytes, ``properties`` that and ``OWN_BYTES + len(caller)`` a
    message. ``spans``: where the topic of all of them (one Resource) begins and ends in ``request``, then each
    message's id.

    Plain is a message with body, id and topic and, where it likes, tag, keys, properties of its own (at most
    ``USER_PROPERTIES_MAX``), host and time of birth and a queue id (which says nothing); of type NORMAL or none, not
    packed; every text of visible ASCII, each field once and within its limits.
    """
    address, end = address_of(request), np.int64(len(request))
    bodies_out, properties_out = address_of(bodies), address_of(properties)
    hashes = np.empty(USER_PROPERTIES_MAX, np.int64)
    at, bodies_at, properties_at = np.int64(0), np.int64(0), np.int64(0)
    for i in range(len(body_ends)):
        start, stop = content_at(address, at + 1, end)
        at = start
        topic, topic_end, system = np.int64(-1), np.int64(-1), np.int64(-1)
        system_end, body, body_end = np.int64(-1), np.int64(-1), np.int64(-1)
        while at < stop:
            key = load_u8(address, at)
            inner, at = content_at(address, at + 1, stop)
            if at < 0:
                return np.int64(i)
            if key == _TOPIC and topic < 0:
                topic, topic_end = inner, at
            elif key == _SYSTEM and system < 0:
                system, system_end = inner, at
            elif key == _BODY and body < 0:
                body, body_end = inner, at
            elif key != _USER:
                return np.int64(i)
        if topic < 0 or system < 0 or body < 0 or body == body_end or body_end - body > BODY_BYTES_MAX:
            return np.int64(i)
        if i == 0:
            spans[0], spans[1] = topic, topic_end
        elif topic_end - topic != spans[1] - spans[0] or not equal_at(
            address, topic, address, spans[0], topic_end - topic
        ):
            return np.int64(i)
        tag, tag_end, message_id, message_id_end, host, host_end, born_ms = _system(address, system, system_end)
        if tag < 0:
            return np.int64(i)
        copy_bytes(bodies_out, bodies_at, address, body, body_end - body)
        bodies_at += body_end - body
        body_ends[i] = bodies_at
        spans[2 * i + 2], spans[2 * i + 3] = message_id, message_id_end
        if tag_end > tag:
            properties_at = _put_pair(properties_out, properties_at, _TAGS_PAIR, address, tag, tag_end)
        properties_at, size = _put_keys(address, system, system_end, properties_out, properties_at)
        properties_at = _put_pair(properties_out, properties_at, _ID_PAIR, address, message_id, message_id_end)
        properties_at, user_size = _put_user(address, start, stop, properties_out, properties_at, hashes)
        if user_size < 0 or size + user_size + tag_end - tag > PROPERTIES_BYTES_MAX:
            return np.int64(i)
        if host_end > host:
            properties_at = _put_pair(properties_out, properties_at, _HOST_PAIR, address, host, host_end)
        elif len(caller) == 0:
            return np.int64(i)
        else:
            properties_at = _put_pair(properties_out, properties_at, _HOST_PAIR, address_of(caller), 0, len(caller))
        if born_ms >= 0:
            copy_bytes(properties_out, properties_at, address_of(_TIME_PAIR), 0, len(_TIME_PAIR))
            properties_at = put_digits(properties_out, properties_at + len(_TIME_PAIR), born_ms)
            store_i8(properties_out, properties_at, _PAIR_END)
            properties_at += 1
        property_ends[i] = properties_at
        if properties_at - (property_ends[i - 1] if i > 0 else 0) > names.PROPERTIES_ROOM:
            return np.int64(i)
    return np.int64(len(body_ends))
