"""How messages of clients come in: into which topic, and what an append asks for besides being stored."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from penstock.formats.attributes.message_types import MessageType, conflict
from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.sharding import keyed_records
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    CorruptBatch,
    Forbidden,
    InvalidArgument,
    LimitReached,
    MessageTooLarge,
    NotEnoughReplicas,
    PenstockError,
    TopicNotFound,
)

from ..store.log.queue_ends import queue_gone
from .journal import Target
from .tables.producers import OWN_PRODUCERS, Receipt, mark_of
from .tables.topics import Topic

if TYPE_CHECKING:
    from .core import Core

ORDINARY: Final = 0
"""The number of :class:`Intake` itself. Others are a feature's: the values of ``AppendHeader.later``."""
LATER: Final = 1
"""Records of the timer topic, to be messages of their topic at their times."""
HALVES: Final = 3
"""Records of the topic of halves, to be messages of their topic when their producer commits them."""
DELAYED: Final = 2
"""Records of the schedule topic, to be messages of their topic when their delay level is over."""
REPLIES: Final = 4
"""Records of the topic of replies, for the client that sent a request to their topic."""


RESERVED_PRODUCERS: Final = OWN_PRODUCERS
"""Producer ids of the broker's own deliveries. A client that used one could have messages passed over in silence."""


class Intake:
    """Ordinary messages. A feature overrides what is different about the messages that ask for it."""

    message_type: ClassVar[MessageType | None] = None
    """Of all these messages; MIXED: they fit every topic; None: NORMAL or FIFO, as each has a sharding key or not."""

    def target(self, topic: Topic) -> Target:
        """Under which topic records for ``topic`` are stored now, and in how many queues."""
        return Target(topic.name, topic.queues)

    def check_room(self) -> None:
        """Refuse what there is no room for. Raises FlowControl: not for more of these messages at present."""

    def check(self, records: memoryview, topic: Topic) -> None:
        """Refuse records that could not come to ``topic`` later on.

        Raises:
            CorruptBatch, MessageTooLarge, InvalidArgument: ``details['index']`` names the first such record.
            FlowControl: as :meth:`check_room`.
        """

    def on_stored(self, receipt: Receipt, count: int) -> None:
        """A batch of so many of these messages is in the log."""


def refused(status: IntEnum, index: int, topic: Topic, what: str, adding: str) -> PenstockError:
    """The error of records that are to become messages of ``topic`` later; ``status``: of the kernel that checks them.

    ``what``: one of them. ``adding``: what has to find room in their properties then.
    """
    where = f"topic {topic.name}, record {index} of the batch"
    if status.name == "BAD_QUEUE":
        return queue_gone(topic.name, index, topic.queues)
    if status.name == "PROPERTIES_TOO_LARGE":
        return MessageTooLarge(f"{where}: its properties leave no room for what {adding} adds", index=index)
    return CorruptBatch(f"{where}: no {what}: {status.name.lower().replace('_', ' ')}", index=index)


class Intakes(dict[int, Intake]):
    """By number; one lookup for each batch."""

    def __missing__(self, number: int) -> Intake:
        raise InvalidArgument(
            f"messages of kind {number}: this broker has no feature that takes them, send them without"
        )


def client_mark(records: memoryview) -> ProducerMark | None:
    """The mark of a client's batch, None if it has none.

    Raises:
        Forbidden: it uses an id that is the broker's own.
        CorruptBatch, MessageTooLarge: see :func:`mark_of`.
    """
    mark = mark_of(records)
    if mark is not None:
        check_producer(mark.producer_id)
    return mark


def check_producer(producer_id: int) -> None:
    """Refuse a client that uses an id of the broker's own. Raises Forbidden."""
    if producer_id in RESERVED_PRODUCERS:
        raise Forbidden(f"producer id {producer_id:016x} is kept for the broker's own deliveries: use another")


def check_types(records: memoryview, count: int, topic: Topic, intake: Intake) -> None:
    """Refuse messages that are not of the topic's type.

    Raises MessageTypeConflict: ``details['index']`` names the first one, where not all ``count`` of them are.
    """
    demanded = topic.message_type
    if demanded is None or intake.message_type in (demanded, MessageType.MIXED):
        return
    if intake.message_type is not None or demanded not in (MessageType.NORMAL, MessageType.FIFO):
        raise conflict(topic.name, demanded, intake.message_type or MessageType.NORMAL)
    found = MessageType.FIFO if demanded is MessageType.NORMAL else MessageType.NORMAL
    others, first = keyed_records(np.frombuffer(records, np.uint8), found is MessageType.FIFO)
    if others == count:
        raise conflict(topic.name, demanded, found)
    if others:
        raise conflict(topic.name, demanded, found, index=int(first))


def writable_topic(core: Core, name: str) -> Topic:
    """The topic, if clients may write it here and now; else the error that says why not."""
    if not core.events.is_open:
        raise BrokerUnavailable("the broker is shutting down")
    core.role.check_master()
    topic = core.tables.topics.get(name)
    if topic is None:
        names.check_topic(name)
    if names.is_system_topic(name):
        raise Forbidden(f"topic {name} is internal: clients may not write to it")
    if topic is None:
        raise TopicNotFound(f"topic {name} does not exist at this broker: create it", topic=name)
    if names.is_filled_by_brokers(name, core.config.identity.cluster):
        raise Forbidden(f"topic {name} may not be written: brokers alone do that")
    if not topic.is_writable:
        raise Forbidden(f"topic {name} may not be written: its perm is {topic.perm}", perm=topic.perm)
    return topic


def check_creatable(core: Core, name: str) -> None:
    """Refuse to make a topic that is one too many, or whose deletion is not dispatched yet: it would show old messages.

    Raises:
        NotEnoughReplicas: the record that deletes it is not confirmed.
        LimitReached: there are enough topics.
    """
    topics, most = core.tables.topics, core.config.limits.topics_max
    if name not in topics and len(topics) >= most:
        raise LimitReached(
            f"topic {name}: there are {len(topics)} topics (maxTopicNum): delete some, or raise the limit"
        )
    if core.tables.topics.deleted_at(name) >= core.store.dispatched_offset:
        raise NotEnoughReplicas(f"topic {name} is being deleted: try again")
