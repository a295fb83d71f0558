"""What kind of messages a topic takes: RocketMQ's topic attribute ``message.type``.

| Value | The topic takes |
|---|---|
| ``NORMAL`` | messages without sharding key, time or transaction |
| ``FIFO`` | messages with a sharding key |
| ``DELAY`` | messages with a time or a delay level |
| ``TRANSACTION`` | halves of transactions |
| ``MIXED``; none, or one that is not in this table | everything |

A message is of one type: the last of the first four that fits it. Source: RocketMQ
``TopicMessageType#parseFromMessageProperty``, ``DefaultTopicMessageTypeValidator``; differs: a topic without the
attribute takes everything, where RocketMQ's proxy takes NORMAL and its broker's remoting port everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from penstock.proto.errors import MessageTypeConflict

MESSAGE_TYPE = "message.type"


class MessageType(StrEnum):
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"


_STRICT = {each.value: each for each in MessageType if each is not MessageType.MIXED}
_MENDED = {
    MessageType.NORMAL: "send it without sharding key and without a time, outside of transactions",
    MessageType.FIFO: "give it a sharding_key, without a time, outside of transactions",
    MessageType.DELAY: "give it deliver_at, delay_s or delay_level",
    MessageType.TRANSACTION: "send it in a transaction of a TransactionProducer",
}


def demanded_type(attributes: Mapping[str, str]) -> MessageType | None:
    """The one type of messages that a topic with these attributes takes, or None if it takes all."""
    value = attributes.get(MESSAGE_TYPE)
    return None if value is None else _STRICT.get(value)


def conflict(topic: str, demanded: MessageType, found: MessageType, **details: Any) -> MessageTypeConflict:
    return MessageTypeConflict(
        f"topic {topic}: it takes {demanded} messages ({MESSAGE_TYPE}), and this one is {found}: {_MENDED[demanded]}, "
        f"or send it to another topic; penstock topic update {topic} --type MIXED lets it take all",
        **details,
    )
