"""Messages both ways: checked and with the properties that brokers store, and from a record as clients are given it.

Sources: RocketMQ's proxy, ``SendMessageActivity``, ``GrpcConverter``; limits as the specification of its clients has
them.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import unicodedata
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.client import MessageView
from penstock.formats.record import properties as names
from penstock.formats.record.compression import Packed
from penstock.formats.record.layout import SysFlag
from penstock.gateway.v2.wire.definition_pb2 import (  # values by their own names: of their enums they take 2 us each
    DELAY,
    FIFO,
    GZIP,
    IDENTITY,
    LITE,
    MD5,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Code,
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from penstock.proto.errors import Corrupt, MessageTooLarge
from penstock.proto.names import DLQ_PREFIX, PRODUCER_PROPERTY

from .callers import Caller
from .names import resource_of
from .status import Refusal

log = logging.getLogger(__name__)

# Frozen into kernels, which are compiled again when anything here changes (formats/intrinsics/freshness.py).
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
GROUP_BYTES_MAX: Final = 64
MESSAGE_ID_LENGTH_MAX: Final = 255
TRACE_CONTEXT_BYTES_MAX: Final = 4096
LITE_TOPIC_BYTES_MAX: Final = 64
DELAY_MS_MAX: Final = 24 * 3600 * 1000
RECOVERY_S_MAX: Final = 3600
ATTEMPT_MAX: Final = 2**31 - 1
TIME_S_MIN: Final = -62_135_596_800
"""The year 1 begins: no timestamp of the protocol is earlier."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: clients cannot read a later time."""

SYSTEM_NAMES: Final = frozenset(
    {
        *(names.TRACE_ON, names.KEYS, names.TAGS, names.WAIT, names.DELAY, names.RETRY_TOPIC, names.REAL_TOPIC),
        *(names.REAL_QUEUE_ID, names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, "MIN_OFFSET", "MAX_OFFSET"),
        *("BUYER_ID", names.ORIGIN_MESSAGE_ID, "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", names.RECONSUME_TIME),
        *(names.MSG_REGION, names.UNIQ_KEY, "EXTEND_UNIQ_INFO", names.MAX_RECONSUME_TIMES, names.CONSUME_START_TIME),
        *(names.PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES, names.CHECK_IMMUNITY_SECONDS),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "DUP_INFO", names.INSTANCE_ID, names.CORRELATION_ID),
        *(names.REPLY_TO_CLIENT, names.TTL, names.ARRIVE_TIME, names.PUSH_REPLY_TIME, names.CLUSTER),
        *(names.MESSAGE_TYPE, names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH),
        *(names.INNER_MULTI_QUEUE_OFFSET, names.TIMER_DELAY_SECONDS, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS),
        *(names.TIMER_OUT_MS, names.TIMER_DELETED_KEY, "TIMER_ENGINE_TYPE", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("TIMER_ROLL_TIMES", "TIMER_DELAY_LEVEL", names.START_DELIVER_TIME, names.BORN_HOST, names.BORN_TIMESTAMP),
        *(names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID, names.RECORD_CRC, PRODUCER_PROPERTY, "__LITE_TOPIC"),
        "__PRIORITY__",
    }
)
"""Properties of records that are no user's."""

_DUE: Final = (names.TIMER_OUT_MS, names.TIMER_DELIVER_MS, names.START_DELIVER_TIME)
LATER: Final = frozenset({*_DUE, names.DELAY})
"""Properties of messages that were sent for later."""
_LITE_TOPIC: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{LITE_TOPIC_BYTES_MAX}}}", re.ASCII)
_ENCODINGS: Final = frozenset({Encoding.ENCODING_UNSPECIFIED, IDENTITY, GZIP})
_GZIP: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = 47
"""zlib's word for telling by the header which of both it is."""
TIME_DIGITS_MAX: Final = 15
"""A property with more digits is no time."""
_SECOND_NS: Final = 1_000_000_000
_TRANSACTION_BITS: Final = 0b1100
_COMMITTED: Final = 0b1000


class Draft(NamedTuple):
    """A message as it is to be sent."""

    message_id: str
    body: bytes
    type: MessageType
    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    sharding_key: str | None
    deliver_at_ms: int | None
    check_after_s: float | None


def draft_of(message: Message, caller: Caller) -> Draft:
    """The message, within all limits. Raises Refusal: with the code of the first thing that is wrong."""
    system = message.system_properties
    body = _body(message)
    user = dict(message.user_properties)
    tag = system.tag or None  # an empty one is none, as are an empty key and message group
    _check_sizes(user, tag, system.keys)
    for name, value in user.items():
        if name in SYSTEM_NAMES or name.startswith(names.TRANSIENT_PREFIX):
            raise Refusal(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name[:64]!r} is the system's: use another name"
            )
        if not name or _has_control(name) or _has_control(value):
            raise Refusal(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name[:64]!r}: empty name, or a control character"
            )
    if tag is not None and (not tag.strip() or "|" in tag or _has_control(tag)):
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, f"tag {tag[:64]!r}: blank, or with | or a control character")
    for key in system.keys:
        if key and (not key.strip() or _has_control(key)):
            raise Refusal(Code.ILLEGAL_MESSAGE_KEY, f"key {key[:64]!r}: blank, or with a control character")
    group = _group(system, user)
    if system.HasField("lite_topic") and not _LITE_TOPIC.fullmatch(system.lite_topic):
        raise Refusal(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {system.lite_topic[:64]!r}: 1..{LITE_TOPIC_BYTES_MAX} letters, digits and the signs _ -",
        )
    message_id = system.message_id
    if not message_id.strip() or len(message_id) > MESSAGE_ID_LENGTH_MAX or _has_control(message_id):
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, f"message id {message_id[:64]!r}: must be 1..255 visible characters")
    due_ms = _due_ms(system)
    properties = {name: value for name, value in user.items() if value}
    properties[names.BORN_HOST] = (system.born_host if system.born_host.strip() else caller.host)[:255]
    if _has_control(properties[names.BORN_HOST]):
        raise Refusal(Code.BAD_REQUEST, "born_host holds a control character")
    if system.HasField("born_timestamp") and 0 <= (born_ms := _milliseconds(system.born_timestamp)) <= TIME_MS_MAX:
        properties[names.BORN_TIMESTAMP] = str(born_ms)
    if system.trace_context:
        context = system.trace_context
        if _has_control(context) or len(context.encode()) > TRACE_CONTEXT_BYTES_MAX:
            raise Refusal(
                Code.BAD_REQUEST, f"trace_context: at most {TRACE_CONTEXT_BYTES_MAX} bytes without control characters"
            )
        properties[names.TRACE_CONTEXT] = context
    if system.delivery_attempt:
        properties[names.RECONSUME_TIME] = str(system.delivery_attempt)
    recovery_s = None
    kind = _type_of(system, due_ms, group)
    if kind == MessageType.TRANSACTION and system.HasField("orphaned_transaction_recovery_duration"):
        given, name = system.orphaned_transaction_recovery_duration, "orphaned_transaction_recovery_duration"
        _check_span(given, name, Code.BAD_REQUEST)
        recovery_s = given.seconds + given.nanos / 1e9
        if not 0 <= recovery_s <= RECOVERY_S_MAX:
            raise Refusal(Code.BAD_REQUEST, f"{name} {recovery_s:g} s: must be 0..{RECOVERY_S_MAX} s")
    return Draft(
        message_id=message_id,
        body=body,
        type=kind,
        tag=tag,
        keys=[key for text in system.keys for key in text.split(names.KEY_SEPARATOR) if key],
        properties=properties,
        sharding_key=group,
        deliver_at_ms=due_ms,
        check_after_s=recovery_s,
    )


def _body(message: Message) -> bytes:
    """The body as it is to be stored. Raises Refusal."""
    body = message.body
    _check_body_size(body)
    encoding = message.system_properties.body_encoding
    if encoding not in _ENCODINGS:  # receivers would be told that it is plain
        raise Refusal(Code.BAD_REQUEST, f"body_encoding {encoding} is not known: use IDENTITY or GZIP")
    if encoding != GZIP:
        return body
    _check_body_size(_unpacked(body))
    return Packed(body)


def _check_body_size(body: bytes) -> None:
    if not body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > BODY_BYTES_MAX:
        raise Refusal(Code.MESSAGE_BODY_TOO_LARGE, f"message body exceeds the max length of {BODY_BYTES_MAX} bytes")


def _unpacked(body: bytes) -> bytes:
    """What a body in GZIP unpacks to, or in zlib's form, which the C++ client calls GZIP.

    Of one that unpacks to more than a body may have, one byte more than that.
    """
    unpacking = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
    try:
        content = unpacking.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise Refusal(Code.MESSAGE_CORRUPTED, f"body_encoding is GZIP, and the body is not: {error}") from None
    if len(content) <= BODY_BYTES_MAX and not unpacking.eof:
        raise Refusal(Code.MESSAGE_CORRUPTED, "body_encoding is GZIP, and the body ends too early")
    if unpacking.unused_data:  # half of the message would be lost
        more = len(unpacking.unused_data)
        raise Refusal(Code.MESSAGE_CORRUPTED, f"body_encoding is GZIP, and {more} bytes follow: send one GZIP member")
    return content


def _check_sizes(user: Mapping[str, str], tag: str | None, keys: Any) -> None:
    if len(user) > USER_PROPERTIES_MAX:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(user)} user properties: at most {USER_PROPERTIES_MAX} are allowed"
        )
    if not (user or tag or keys):
        return
    size = sum(len(name.encode()) + len(value.encode()) for name, value in user.items())
    size += len((tag or "").encode()) + sum(len(key.encode()) for key in keys)
    if size > PROPERTIES_BYTES_MAX:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys take {size} bytes: at most {PROPERTIES_BYTES_MAX} are allowed",
        )


def _group(system: SystemProperties, user: dict[str, str]) -> str | None:
    """The message group; a user property of the name under which it is stored is one, too."""
    group = user.pop(names.SHARDING_KEY, None) or None
    if system.message_group:
        group = system.message_group
    if group is None:
        return None
    if not group.strip() or len(group.encode()) >= GROUP_BYTES_MAX or _has_control(group):
        raise Refusal(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group {group[:64]!r}: blank, {GROUP_BYTES_MAX} bytes or more, or with a control character",
        )
    return group


def _due_ms(system: SystemProperties) -> int | None:
    if not system.HasField("delivery_timestamp"):
        return None
    given = system.delivery_timestamp
    if not (given.seconds >= TIME_S_MIN and 0 <= given.nanos < _SECOND_NS):
        raise Refusal(
            Code.ILLEGAL_DELIVERY_TIME,
            f"delivery timestamp of {given.seconds} s and {given.nanos} ns: must be of the year 1 or later, "
            "with 0..999999999 ns",
        )
    due_ms = _milliseconds(given)
    if due_ms > time.time() * 1000 + DELAY_MS_MAX:
        raise Refusal(Code.ILLEGAL_DELIVERY_TIME, "the max delay time of message is too large: at most 24 h from now")
    return max(due_ms, 1)


def _type_of(system: SystemProperties, due_ms: int | None, group: str | None) -> MessageType:
    """The type that follows from what is set. Raises Refusal: what is set does not go together."""
    found = NORMAL
    if system.message_type == TRANSACTION:
        found = TRANSACTION
    elif due_ms is not None:
        found = DELAY
    elif group is not None:
        found = FIFO
    elif system.HasField("priority") or system.message_type == PRIORITY:
        found = PRIORITY
    elif system.HasField("lite_topic") or system.message_type == LITE:
        found = LITE
    surplus = "delivery timestamp" if found == TRANSACTION and due_ms is not None else ""
    if system.HasField("priority") and found != PRIORITY:
        surplus = "priority"
    if surplus:  # to leave it out would be to do something else than the sender wants
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"a message of type {MessageType.Name(found)} has no {surplus}"
        )
    return found


def _has_control(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(each) == "Cc" for each in text)


def _milliseconds(stamp: Duration | Timestamp) -> int:
    return stamp.seconds * 1000 + stamp.nanos // 1_000_000


def span_ms(given: Duration | Timestamp, name: str, code: Code) -> int:
    """A span of a request, or a time from 1970 on, in ms. Raises Refusal with ``code`` if it cannot be one."""
    _check_span(given, name, code)
    return _milliseconds(given)


def _check_span(given: Duration | Timestamp, name: str, code: Code) -> None:
    if not -_SECOND_NS < given.nanos < _SECOND_NS or given.seconds * given.nanos < 0:
        raise Refusal(
            code,
            f"{name} of {given.seconds} s and {given.nanos} ns: at most 999999999 ns, of the sign of the seconds",
        )


def timestamp(milliseconds: int) -> Timestamp:
    """The protocol's form of a time in ms since 1970 UTC."""
    _set_time(made := Timestamp(), milliseconds)
    return made


def duration(milliseconds: int) -> Duration:
    """The protocol's form of a time span in ms."""
    _set_time(made := Duration(), milliseconds)
    return made


def deliver(
    into: Message,
    view: MessageView,
    topic: Resource,
    namespace: str,
    *,
    attempt: int = 1,
    receipt_handle: str = "",
    invisible_ms: int = 0,
) -> None:
    """Make ``into``, which is empty, a stored message as its receiver gets it, who is in ``namespace``.

    ``topic``: as the receiver names it.
    """
    found = view.all_properties
    into.topic.CopyFrom(topic)
    body, encoding = _readable(view)
    into.body = body
    is_later = not LATER.isdisjoint(found)
    # Field by field: messages made apart, to be copied into this one, cost three times as much.
    system = into.system_properties
    if names.KEYS in found:
        system.keys.extend(view.keys)
    system.message_id = view.message_id
    system.body_digest.type = MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = _stored_type(view, found, is_later=is_later)
    _set_time(system.born_timestamp, _number(found.get(names.BORN_TIMESTAMP), view.born_timestamp_ms))
    system.born_host = found.get(names.BORN_HOST) or view.born_host
    _set_time(system.store_timestamp, view.store_timestamp_ms)
    system.store_host = view.store_host
    system.queue_id = view.queue_id
    system.queue_offset = view.queue_offset
    system.delivery_attempt = min(attempt, ATTEMPT_MAX)
    if view.tag is not None:
        system.tag = view.tag
    if names.SHARDING_KEY in found:
        system.message_group = found[names.SHARDING_KEY]
    if names.TRACE_CONTEXT in found:
        system.trace_context = found[names.TRACE_CONTEXT]
    if receipt_handle:
        system.receipt_handle = receipt_handle
    if invisible_ms:
        _set_time(system.invisible_duration, invisible_ms)
    if is_later and (due_ms := next((_number(found[name], 0) for name in _DUE if name in found), 0)):
        _set_time(system.delivery_timestamp, due_ms)
    if topic.name.startswith(DLQ_PREFIX) and names.DLQ_ORIGIN_TOPIC in found:
        origin = resource_of(found[names.DLQ_ORIGIN_TOPIC], topic.resource_namespace or namespace).name
        system.dead_letter_queue.topic = origin
        # Its sender's id, which it keeps; the other one is RocketMQ's old id of a place in the log.
        origin_id = found.get(names.UNIQ_KEY) or found.get(names.DLQ_ORIGIN_MESSAGE_ID)
        system.dead_letter_queue.message_id = origin_id or view.message_id
    if not SYSTEM_NAMES.issuperset(found):
        into.user_properties.update({name: value for name, value in found.items() if name not in SYSTEM_NAMES})


def _set_time(field: Timestamp | Duration, milliseconds: int) -> None:
    """A time since 1970 UTC, or a span."""
    field.seconds, milliseconds = divmod(milliseconds, 1000)
    field.nanos = milliseconds * 1_000_000


def _readable(view: MessageView) -> tuple[bytes, Encoding]:
    """The body in a form that v2 clients read: GZIP as it is stored, everything else unpacked."""
    if not view.sys_flag & SysFlag.COMPRESSED:
        return view.body, IDENTITY
    stored = view.stored_body
    if not stored.startswith(_GZIP):
        try:
            return view.body, IDENTITY
        except (Corrupt, MessageTooLarge) as error:  # its receiver finds the same, and the others get theirs
            log.warning("body not unpacked topic=%s offset=%d error=%s", view.topic, view.queue_offset, error.message)
    return stored, GZIP


def _stored_type(view: MessageView, found: Mapping[str, str], *, is_later: bool) -> MessageType:
    if found.get(names.TRANSACTION_PREPARED) == "true" or view.sys_flag & _TRANSACTION_BITS == _COMMITTED:
        return TRANSACTION
    if is_later:
        return DELAY
    return FIFO if names.SHARDING_KEY in found else NORMAL


def _number(text: str | None, otherwise: int) -> int:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > TIME_DIGITS_MAX:
        return otherwise
    return min(int(text), TIME_MS_MAX)
