"""Replies as requesters get them, and what a responder sends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.formats.record import properties as names
from penstock.proto.errors import InvalidArgument

from ..message import MessageView
from ..produce.drafts import Draft

if TYPE_CHECKING:
    from penstock.formats.record.reading import RecordBatch

REPLY_TYPE: Final = "reply"
VALUE_BYTES_MAX: Final = 255
"""Of a correlation id and of a client id; brokers take no more."""


class Reply(MessageView):
    """A reply. :attr:`all_properties` also tell when the broker pushed it and when it arrived, as in RocketMQ."""

    __slots__ = ()

    def __init__(self, batch: RecordBatch, index: int, broker_name: str, push_time_ms: int) -> None:
        super().__init__(batch, index, broker_name)
        told = {names.PUSH_REPLY_TIME: str(push_time_ms), names.ARRIVE_TIME: str(time.time_ns() // 1_000_000)}
        self._properties = {**batch.properties(index), **told}

    @property
    def correlation_id(self) -> str:
        """That of its request; empty without one."""
        return self.all_properties.get(names.CORRELATION_ID, "")


def draft_of_reply(
    message: object,
    body: object,
    tag: str | None,
    keys: Sequence[str] | str | None,
    properties: Mapping[str, str] | None,
) -> Draft:
    """What is to be sent to whoever sent ``message``. Raises InvalidArgument: it is no request that was received."""
    if not isinstance(message, MessageView):
        raise InvalidArgument(f"reply to {message!r:.60}: give a message that a consumer received")
    told = message.all_properties
    own = {names.MESSAGE_TYPE: REPLY_TYPE}
    for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT):
        value = told.get(name, "")
        size = len(value.encode(errors="replace"))
        if not size:
            raise InvalidArgument(f"reply to message {message.message_id} of topic {message.topic}: it is no request")
        if size > VALUE_BYTES_MAX:
            raise InvalidArgument(
                f"reply to message {message.message_id} of topic {message.topic}: its {name} has {size} bytes, at most "
                f"{VALUE_BYTES_MAX} are allowed: no client of Penstock or RocketMQ has sent it"
            )
        own[name] = value
    if names.TTL in told:
        own[names.TTL] = told[names.TTL]
    return Draft(message.topic, body, tag, keys, {**(properties or {}), **own})
