"""The property string of a record: ``name 0x01 value 0x02`` repeated, UTF-8.

* Written: every pair ends with 0x02, the last one too; separators and NUL may not occur in names or values.
* Read: a missing final 0x02 is tolerated; the first 0x01 of a pair separates; pairs without a name or without a
  value are dropped; of a repeated name the last value counts.
* Size: at most 32767 bytes, since the record holds it as a signed i16.

Source: RocketMQ ``MessageDecoder#messageProperties2String``, ``#string2messageProperties``.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.proto.errors import InvalidArgument
from penstock.proto.names import PRODUCER_PROPERTY

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
NUL = "\0"
"""What a torn write leaves. So that a start can tell, no property that is written has it."""
PROPERTIES_BYTES_MAX = 32767
MARK_ROOM = 128
"""Left free by producers in every property string: the first record of a batch holds their mark as well."""
PROPERTIES_ROOM = PROPERTIES_BYTES_MAX - MARK_ROOM

KEYS = "KEYS"
KEY_SEPARATOR = " "
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
UNIQ_KEY = "UNIQ_KEY"
SHARDING_KEY = "__SHARDINGKEY"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
INSTANCE_ID = "INSTANCE_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
TRACE_CONTEXT = "TRACE_CONTEXT"
CLUSTER = "CLUSTER"
RETRY_TOPIC = "RETRY_TOPIC"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TIMER_DELAY_SECONDS = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DELETED_KEY = "TIMER_DEL_UNIQKEY"
START_DELIVER_TIME = "__STARTDELIVERTIME"
MESSAGE_TYPE = "MSG_TYPE"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
ARRIVE_TIME = "ARRIVE_TIME"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
RECORD_CRC = "__CRC32#"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."

RESERVED = frozenset({TAGS, KEYS, UNIQ_KEY, SHARDING_KEY, PRODUCER_PROPERTY, RECORD_CRC})
"""Property names that users give through their own arguments, or not at all."""

LATER_WISHES = frozenset({DELAY, TIMER_DELAY_SECONDS, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME})
"""Property names with which RocketMQ's clients ask for a delivery later. A sender of single messages takes them as the
arguments of these meanings; in a stored record they have no effect by themselves."""
UNKEPT = LATER_WISHES | {TRANSACTION_PREPARED, TIMER_DELETED_KEY}
"""The same, what asks for a transaction, and what takes a message back. Where such a property would be stored and do
nothing, or something else, the message is refused."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string of ``properties``, in their order.

    A pair with an empty value is written, as RocketMQ does, and dropped by every reader.

    Raises:
        InvalidArgument: an empty name, a separator or NUL inside a name or value, text that is not Unicode, or more
            than 32767 bytes.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count or NUL in text:
        raise InvalidArgument("properties: names and values may not contain the characters 0x00, 0x01 and 0x02")
    if "" in properties:
        raise InvalidArgument("properties: a name may not be empty")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"properties: not valid Unicode text: {error.reason}") from error
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise InvalidArgument(f"properties take {len(encoded)} bytes: at most {PROPERTIES_BYTES_MAX} are allowed")
    return encoded


def decode_properties(encoded: bytes | bytearray | memoryview) -> dict[str, str]:
    """The properties in ``encoded``: order of first appearance, last value; never fails.

    Bytes that are not UTF-8 become U+FFFD.
    """
    found: dict[str, str] = {}
    for pair in str(encoded, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            found[name] = value
    return found
