"""The rules for creating and changing topics. Decisions only: nothing is stored here."""

from __future__ import annotations

from dataclasses import replace

from penstock.formats.attributes.message_types import MESSAGE_TYPE, MessageType
from penstock.formats.attributes.order_conf import ORDER_CONF, parse_order_conf
from penstock.proto import names
from penstock.proto.errors import Forbidden, InvalidArgument, TopicExists, TopicNotFound
from penstock.proto.wire.broker_pb2 import CreateTopicRequest
from penstock.proto.wire.common_pb2 import TopicConfig

from ..config import TopicsConfig
from ..core.tables.topics import CLEANUP_POLICY, COMPACTION, RETENTION_MS, Topic

QUEUES_MAX = 65_536
_ATTRIBUTES = (MESSAGE_TYPE, CLEANUP_POLICY, RETENTION_MS, ORDER_CONF)
_VALUES = {MESSAGE_TYPE: tuple(MessageType), CLEANUP_POLICY: ("DELETE",)}
"""The values that these attributes may be given. A topic of RocketMQ's keeps what it has."""
_WHY = {
    (CLEANUP_POLICY, COMPACTION): ": the last message of each key is not kept by itself: leave the attribute out, let "
    f"{RETENTION_MS} say how long messages are kept, and keep what is current in a table of your own",
}


def topic_to_create(
    request: CreateTopicRequest, existing: Topic | None, settings: TopicsConfig, count: int = 0
) -> Topic | None:
    """The topic as it should be, or None if it is so already; ``count``: of the topics that there are.

    In a request, 0 means the default, or no change. The answer to a repeated request is the same topic. Whether removed
    queues are drained is the caller's to check, see :func:`removed_queues`.

    Raises:
        InvalidName, InvalidArgument: what was asked for makes no topic.
        Forbidden: the name is internal, or that of a group's retries or dead letters.
        TopicNotFound: automatic creation, and autoCreateTopicEnable is false, or there are autoCreateTopicMax topics.
        TopicExists: it exists with another shape, and ``update`` was not asked for.
    """
    name = names.check_topic(request.config.topic)
    if names.is_system_topic(name):
        raise Forbidden(f"topic {name} is internal: clients may not create or change it")
    if request.auto and existing is not None:
        return None
    if request.auto and not settings.auto_create:
        raise TopicNotFound(f"topic {name} does not exist and autoCreateTopicEnable is false: create it", topic=name)
    if request.auto and count >= settings.auto_create_max:
        raise TopicNotFound(
            f"topic {name} does not exist and is not made by its use: there are {count} topics, autoCreateTopicMax is "
            f"{settings.auto_create_max}: create it",
            topic=name,
        )
    if existing is None and name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
        raise Forbidden(
            f"topic {name}: such names are for what consumer groups could not handle: clients may not create it"
        )
    wanted = _wanted(request.config, existing if request.update else None, settings.default_queues)
    if existing is None:
        return wanted
    wanted = replace(wanted, extra=existing.extra)
    if wanted == existing:
        return None
    if not request.update:
        raise TopicExists(
            f"topic {name} exists with {_shape(existing)}, not {_shape(wanted)}: `penstock topic update`, "
            "or update_topic of an Admin, changes it"
        )
    if wanted.read_queues < existing.write_queues and wanted.read_queues < existing.read_queues:
        raise InvalidArgument(
            f"topic {name}: read_queues {wanted.read_queues} is below write_queues {existing.write_queues}: lower "
            "write_queues first, let consumers drain the queues, then lower read_queues"
        )
    return wanted


def removed_queues(existing: Topic | None, wanted: Topic) -> range:
    """The queues that nobody could read any more after the change."""
    return range(wanted.read_queues, existing.read_queues) if existing is not None else range(0)


def _wanted(asked: TopicConfig, existing: Topic | None, default_queues: int) -> Topic:
    queues = max(asked.read_queues, asked.write_queues) or default_queues
    before = existing or Topic(asked.topic, queues, queues)
    topic = Topic(
        name=asked.topic,
        read_queues=asked.read_queues or before.read_queues,
        write_queues=asked.write_queues or before.write_queues,
        perm=asked.perm or before.perm,
        attributes={name: value for name, value in (asked.attributes or before.attributes).items() if value},
    )
    for kind, count in (("read_queues", topic.read_queues), ("write_queues", topic.write_queues)):
        if not 1 <= count <= QUEUES_MAX:
            raise InvalidArgument(f"topic {topic.name}: {kind} {count}: 1..{QUEUES_MAX} are allowed")
    if topic.write_queues > topic.read_queues:
        raise InvalidArgument(
            f"topic {topic.name}: write_queues {topic.write_queues} above read_queues {topic.read_queues}: "
            "nobody could read the messages of the others"
        )
    if ORDER_CONF in topic.attributes:
        parse_order_conf(topic.attributes[ORDER_CONF])
    for attribute, value in topic.attributes.items():
        if attribute not in _ATTRIBUTES and attribute not in before.attributes:
            raise InvalidArgument(
                f"topic {topic.name}: attribute {attribute[:40]!r}: is not known; topics have {', '.join(_ATTRIBUTES)}"
            )
        allowed = _VALUES.get(attribute, (value,))
        if value not in allowed and before.attributes.get(attribute) != value:
            raise InvalidArgument(
                f"topic {topic.name}: attribute {attribute} {value[:40]!r}: allowed: {', '.join(allowed)}"
                + _WHY.get((attribute, value), "")
            )
    kept = topic.attributes.get(RETENTION_MS, "1")
    if not (kept.isdecimal() and kept.isascii() and 1 <= int(kept) < 1 << 53):
        raise InvalidArgument(f"topic {topic.name}: {RETENTION_MS} {kept[:40]!r}: a number of milliseconds from 1 on")
    if not 1 <= topic.perm <= 7 or not topic.perm & names.PERM_READ_WRITE:
        raise InvalidArgument(f"topic {topic.name}: perm {topic.perm}: READ 4, WRITE 2 or both, 6, are allowed")
    return topic


def _shape(topic: Topic) -> str:
    perm = {names.PERM_READ: "r", names.PERM_WRITE: "w", names.PERM_READ_WRITE: "rw"}.get(topic.perm, topic.perm)
    return f"{topic.read_queues} read queues, {topic.write_queues} write queues, perm {perm}" + (
        f", {dict(topic.attributes)}" if topic.attributes else ""
    )
