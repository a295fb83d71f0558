"""The rules for creating, changing and deleting topics and groups. Decisions only: nothing is stored here."""

from __future__ import annotations

from dataclasses import replace

from penstock.proto import names
from penstock.proto.errors import Forbidden, InvalidArgument, TopicExists, TopicNotFound
from penstock.proto.wire import broker_pb2, common_pb2

from ..core.state import RETRY_MAX_TIMES_DEFAULT, Group, Topic

QUEUES_MAX = 65_536
RETENTION_MS = "retention.ms"
"""Topic attribute: its messages are readable for so long, if their file lives that long; see :mod:`.retention`."""


def topic_to_create(
    request: broker_pb2.CreateTopicRequest, existing: Topic | None, *, auto_create: bool, default_queues: int
) -> Topic | None:
    """The topic as it should be after the request; None when it is so already.

    Queue counts of 0 mean the default (a new topic) or no change (an update). The answer to a repeated
    request is the same topic. Whether removed queues are drained is the caller's to check, see
    :func:`removed_queues`.

    Raises:
        InvalidName, InvalidArgument: what was asked for makes no topic.
        Forbidden: the name is internal.
        TopicNotFound: automatic creation, and autoCreateTopicEnable is false.
        TopicExists: it exists with another shape, and ``update`` was not asked for.
    """
    name = names.check_topic(request.config.topic)
    if names.is_system_topic(name):
        raise Forbidden(f"topic {name} is internal: clients may not create or change it")
    if request.auto and existing is not None:
        return None
    if request.auto and not auto_create:
        raise TopicNotFound(f"topic {name} does not exist and autoCreateTopicEnable is false: create it", topic=name)
    wanted = _wanted(request.config, existing if request.update else None, default_queues)
    if existing is None:
        return wanted
    wanted = replace(wanted, extra=existing.extra)
    if wanted == existing:
        return None
    if not request.update:
        raise TopicExists(
            f"topic {name} exists with {_shape(existing)}, not {_shape(wanted)}: ask for an update to change it"
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


def group_of(config: common_pb2.GroupConfig, existing: Group | None) -> Group:
    """The group as ``config`` asks for; 0 retries mean the default. Raises InvalidName, InvalidArgument."""
    if config.retry_max_times < 0:
        raise InvalidArgument(f"group {config.group}: retry_max_times {config.retry_max_times} may not be negative")
    return Group(
        name=names.check_group(config.group),
        consume_enable=config.consume_enable,
        retry_max_times=config.retry_max_times or RETRY_MAX_TIMES_DEFAULT,
        attributes=dict(config.attributes),
        extra=existing.extra if existing is not None else {},
    )


def _wanted(config: common_pb2.TopicConfig, existing: Topic | None, default_queues: int) -> Topic:
    if existing is not None:
        topic = Topic(
            name=config.topic,
            read_queues=config.read_queues or existing.read_queues,
            write_queues=config.write_queues or existing.write_queues,
            perm=config.perm or existing.perm,
            attributes=dict(config.attributes) or existing.attributes,
        )
    else:
        queues = max(config.read_queues, config.write_queues) or default_queues
        topic = Topic(
            name=config.topic,
            read_queues=config.read_queues or queues,
            write_queues=config.write_queues or queues,
            perm=config.perm or names.PERM_READ_WRITE,
            attributes=dict(config.attributes),
        )
    for kind, count in (("read_queues", topic.read_queues), ("write_queues", topic.write_queues)):
        if not 1 <= count <= QUEUES_MAX:
            raise InvalidArgument(f"topic {topic.name}: {kind} {count}: 1..{QUEUES_MAX} are allowed")
    if topic.write_queues > topic.read_queues:
        raise InvalidArgument(
            f"topic {topic.name}: write_queues {topic.write_queues} above read_queues {topic.read_queues}: "
            "nobody could read the messages of the others"
        )
    kept = topic.attributes.get(RETENTION_MS, "1")
    if not (kept.isdecimal() and kept.isascii() and 1 <= int(kept) < 1 << 53):
        raise InvalidArgument(f"topic {topic.name}: {RETENTION_MS} {kept[:40]!r}: a number of milliseconds from 1 on")
    if not 1 <= topic.perm <= 7 or not topic.perm & names.PERM_READ_WRITE:
        raise InvalidArgument(f"topic {topic.name}: perm {topic.perm}: READ 4, WRITE 2 or both, 6, are allowed")
    return topic


def _shape(topic: Topic) -> str:
    return f"{topic.read_queues} read queues, {topic.write_queues} write queues, perm {topic.perm}" + (
        f", {dict(topic.attributes)}" if topic.attributes else ""
    )
