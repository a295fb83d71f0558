"""Request-reply: replies come in, are stored, and go to the clients that wait for them.

A request is an ordinary message whose properties say who waits for its reply (:mod:`penstock.formats.record.replies`).
The reply is appended at the broker group that has the request, to ``<cluster>_REPLY_TOPIC``, under the marks of its
producer like any message: so it is stored once, replicated, and as safe as the mode promises. Once that is so, it is
pushed to the client that it names. Whoever listens names a position of the log, that of its oldest request without a
reply: replies lie behind their requests, at every member of the group.

Source: RocketMQ ``ReplyMessageProcessor``; differs: the push comes after the acknowledgement and tells the responder
nothing; a requester whose connection broke gets from the topic what it missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import numpy as np

from penstock.formats.attributes.message_types import MessageType
from penstock.formats.record.replies import (
    CLIENT_BYTES_MAX,
    CORRELATION_BYTES_MAX,
    ReplyStatus,
    check_replies,
)
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, CorruptBatch, InvalidArgument, PenstockError, StorageError
from penstock.runtime.data.port import Converse

from ...core.core import Core
from ...core.failed import ensure_topic
from ...core.feature import Feature
from ...core.intake import REPLIES, Intake
from ...core.journal import Journal, Target
from ...core.metrics import Families
from ...core.tables.producers import Receipt
from ...core.tables.topics import Topic
from .pushing import Pusher

log = logging.getLogger(__name__)

QUEUES: Final = 1
RETRY_S: Final = 1.0


class Replies(Feature, Intake):
    """Takes replies, and pushes them."""

    message_type = MessageType.MIXED

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.pusher = Pusher(core)
        self.listeners = self.pusher.listeners
        core.dispatcher.watchers.append(self.pusher)

    def intakes(self) -> Mapping[int, Intake]:
        return {REPLIES: self}

    def data_methods(self) -> Mapping[int, Converse]:
        return {Method.LISTEN: self.listeners}

    # Replies come in.

    def target(self, topic: Topic) -> Target:
        return Target(self.pusher.topic, QUEUES)

    def check(self, records: memoryview, topic: Topic) -> None:
        status, index = check_replies(np.frombuffer(records, np.uint8))
        where, index = f"reply to a request of topic {topic.name}, record {index} of the batch", int(index)
        if status == ReplyStatus.NO_RECORD:
            raise CorruptBatch(f"{where}: it is no record", index=index)
        if status == ReplyStatus.NOT_A_REPLY:
            raise InvalidArgument(f"{where}: its property MSG_TYPE must be reply", index=index)
        if status == ReplyStatus.BAD_CORRELATION:
            raise InvalidArgument(
                f"{where}: it needs a CORRELATION_ID of 1..{CORRELATION_BYTES_MAX} bytes, that of its request",
                index=index,
            )
        if status == ReplyStatus.BAD_CLIENT:
            raise InvalidArgument(
                f"{where}: it needs a REPLY_TO_CLIENT of 1..{CLIENT_BYTES_MAX} bytes, that of its request", index=index
            )
        if self.core.events.journal is not None:
            ensure_topic(self.core, self.core.events.journal, self.pusher.topic, QUEUES)
        self.pusher.expect()

    def on_stored(self, receipt: Receipt, count: int) -> None:
        self.pusher.on_stored(receipt, count)

    # Its place in the broker.

    def describe(self, families: Families) -> None:
        pusher = self.pusher
        pusher.pass_over()
        families.gauge("penstock_reply_listeners", "Clients that listen for replies", len(self.listeners))
        for name, doc, count in (
            ("penstock_replies_pushed", "Replies sent to the clients that wait for them", pusher.pushed),
            ("penstock_replies_unheard", "Replies whose client did not listen when they came", pusher.unheard),
            ("penstock_replies_postponed", "Replies that a slow client gets later, from the topic", pusher.postponed),
        ):
            families.counter(name, doc, count)

    def on_role(self, journal: Journal | None) -> None:
        self.pusher.on_role(journal)
        if journal is None:
            self.listeners.end_all(BrokerUnavailable("the broker is not master any more: listen at the new one"))

    async def run(self) -> None:
        """Push until cancelled; what goes wrong is logged and tried again."""
        while True:
            try:
                await self.pusher.run()
            except StorageError:
                raise
            except PenstockError as error:
                log.warning("replies not pushed error=%s: %s", type(error).__name__, error)
                await asyncio.sleep(RETRY_S)
                self.pusher.poke()

    async def stop(self) -> None:
        self.listeners.close()
