"""What a broker knows besides messages: topics, consumer groups, committed offsets.

The truth is the log: every change is a record of the internal topic ``names.STATE_TOPIC`` (queue 0), so a
replica that has the log has the state. The tables here are derived from those records. Each entry remembers
the physical offset of the record it came from and takes only newer ones, so a record may be applied again
(the master applies its own at append, every role applies all at dispatch, a start replays) without effect.

Shapes of the records: the tag is the kind, the body compact JSON.

| Tag | Body |
|---|---|
| ``TOPIC`` | an entry of RocketMQ's ``topics.json``: ``topicName``, ``readQueueNums``, ``writeQueueNums``, ``perm``, ``attributes``, … |
| ``TOPIC_DELETED`` | ``{"topicName": t}``; takes the topic's committed offsets with it |
| ``GROUP`` | an entry of ``subscriptionGroup.json``: ``groupName``, ``consumeEnable``, ``retryMaxTimes``, … |
| ``GROUP_DELETED`` | ``{"groupName": g}``; takes the group's committed offsets with it |
| ``OFFSETS`` | ``{"group": g, "offsets": {topic: {"0": next offset, …}}}``: one commit of any number of queues |
| ``SEQUENCES`` | of :mod:`.producers` |
| others | of the tables in ``State.more``, which say what their records hold: :mod:`.staging_table`, :mod:`.watermarks`, :mod:`.timer_table` |
"""  # noqa: E501  a table row cannot be broken

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import TAGS, decode_properties
from penstock.proto import names
from penstock.proto.errors import Corrupt
from penstock.proto.wire import common_pb2

from ..features.archive.watermarks import Watermarks
from ..features.exactly_once.staging_table import StagingTable
from ..features.later.timer_table import TimerTable
from .producers import SEQUENCES, ProducerTable
from .tables import OffsetTable, Table

log = logging.getLogger(__name__)

TOPIC: Final = "TOPIC"
TOPIC_DELETED: Final = "TOPIC_DELETED"
GROUP: Final = "GROUP"
GROUP_DELETED: Final = "GROUP_DELETED"
OFFSETS: Final = "OFFSETS"

CREATED_MS: Final = "createdMs"
"""A field of ours in a topic's entry. RocketMQ passes over it, and drops it when it writes."""
RETRY_MAX_TIMES_DEFAULT = 16

Offsets = Mapping[str, Mapping[int, int]]
"""topic -> queue id -> next offset to consume."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's shape on this broker group; ``extra`` keeps RocketMQ's other fields as they were read."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = names.PERM_READ_WRITE
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & names.PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & names.PERM_WRITE)

    @property
    def created_ms(self) -> int:
        """When it was created here, which tells it from one of the same name that was deleted; 0 if unknown."""
        found = self.extra.get(CREATED_MS, 0)
        return found if isinstance(found, int) else 0

    def to_wire(self) -> common_pb2.TopicConfig:
        """The wire's message of this topic."""
        return common_pb2.TopicConfig(
            topic=self.name,
            read_queues=self.read_queues,
            write_queues=self.write_queues,
            perm=self.perm,
            attributes=dict(self.attributes),
        )

    def to_json(self) -> dict[str, Any]:
        """An entry of ``topics.json``, field names sorted as RocketMQ writes them."""
        document = {**_TOPIC_DEFAULTS, **self.extra}
        document |= {"topicName": self.name, "readQueueNums": self.read_queues, "writeQueueNums": self.write_queues}
        document |= {"perm": self.perm, "attributes": dict(self.attributes)}
        return dict(sorted(document.items()))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Topic:
        """The topic of a ``topics.json`` entry. Raises KeyError, TypeError or ValueError when it is none."""
        return cls(
            name=str(document["topicName"]),
            read_queues=int(document["readQueueNums"]),
            write_queues=int(document["writeQueueNums"]),
            perm=int(document.get("perm", names.PERM_READ_WRITE)),
            attributes={str(key): str(value) for key, value in (document.get("attributes") or {}).items()},
            extra=_extra(document, _TOPIC_KEYS, _TOPIC_DEFAULTS),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group's settings; ``extra`` keeps RocketMQ's other fields as they were read."""

    name: str
    consume_enable: bool = True
    retry_max_times: int = RETRY_MAX_TIMES_DEFAULT
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> common_pb2.GroupConfig:
        """The wire's message of this group."""
        return common_pb2.GroupConfig(
            group=self.name,
            consume_enable=self.consume_enable,
            retry_max_times=self.retry_max_times,
            attributes=dict(self.attributes),
        )

    def to_json(self) -> dict[str, Any]:
        """An entry of ``subscriptionGroup.json``, RocketMQ's defaults where nothing else is known."""
        document = {**_GROUP_DEFAULTS, **self.extra}
        document |= {"groupName": self.name, "consumeEnable": self.consume_enable}
        document |= {"retryMaxTimes": self.retry_max_times, "attributes": dict(self.attributes)}
        return dict(sorted(document.items()))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Group:
        """The group of a ``subscriptionGroup.json`` entry. Raises KeyError, TypeError or ValueError when none."""
        return cls(
            name=str(document["groupName"]),
            consume_enable=bool(document.get("consumeEnable", True)),
            retry_max_times=int(document.get("retryMaxTimes", RETRY_MAX_TIMES_DEFAULT)),
            attributes={str(key): str(value) for key, value in (document.get("attributes") or {}).items()},
            extra=_extra(document, _GROUP_KEYS, _GROUP_DEFAULTS),
        )


_TOPIC_KEYS: Final = frozenset({"topicName", "readQueueNums", "writeQueueNums", "perm", "attributes"})
_GROUP_KEYS: Final = frozenset({"groupName", "consumeEnable", "retryMaxTimes", "attributes"})
_TOPIC_DEFAULTS: Final[Mapping[str, Any]] = {"order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
_GROUP_DEFAULTS: Final[Mapping[str, Any]] = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


class Derived(Protocol):
    """A table of its own: its record kinds, and its snapshot file."""

    file_name: str
    kinds: frozenset[str]
    base: int

    @property
    def changes(self) -> int: ...
    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None: ...
    def repeated(self, position: int) -> Iterator[tuple[str, dict[str, Any]]]: ...
    def expire(self, now_ms: int) -> None: ...
    def forget_deleted(self, dispatched: int) -> None: ...
    def adopt(self, other: Any) -> None: ...
    def load(self, document: Mapping[str, Any]) -> None: ...
    def pieces(self) -> Iterator[str]: ...


TopicsChanged = Callable[[list[Topic], list[str]], None]
OffsetsApplied = Callable[[str, str, Mapping[int, int]], None]
OffsetsDeleted = Callable[[str, str], None]


class State:
    """Topics, groups and committed offsets of one broker; event loop only.

    ``producers`` is a table of its own, filled from the marks of batches; state records tell it what came before the
    log's begin.

    ``on_topics_changed(updated, removed)`` is called after each change of the topic table that took effect,
    ``on_offsets_applied(group, topic, offsets)`` after each commit, ``on_offsets_deleted(group, topic)`` when all of a
    group's offsets went with it, or all of a topic's; the other name is empty then.
    """

    def __init__(self, producers: ProducerTable | None = None) -> None:
        self.producers = ProducerTable() if producers is None else producers
        self.topics: Table[Topic] = Table()
        self.groups: Table[Group] = Table()
        self.offsets = OffsetTable()
        self.staging = StagingTable()
        self.watermarks = Watermarks()
        self.timers = TimerTable()
        self.more: list[Derived] = [self.staging, self.watermarks, self.timers]
        self.on_topics_changed: TopicsChanged = lambda updated, removed: None
        self.on_offsets_applied: OffsetsApplied = lambda group, topic, offsets: None
        self.on_offsets_deleted: OffsetsDeleted = lambda group, topic: None
        self.newest_record = -1
        """Where the newest record begins whose change is, or was, in these tables."""
        self._applied: dict[int, str] = {}  # own records applied at append, still to come back by dispatch

    def topic(self, name: str) -> Topic | None:
        """The topic of that name, if it exists here."""
        return self.topics.get(name)

    def read_queues(self, name: str) -> int:
        """How many queues of that name can be read: those of a topic, or the one of a light queue; 0 if unknown."""
        topic = self.topics.get(name)
        return topic.read_queues if topic is not None else int(name.startswith(names.LIGHT_PREFIX))

    def group(self, name: str) -> Group | None:
        """The group of that name, if it exists here."""
        return self.groups.get(name)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset that ``group`` will consume of the queue, -1 if it never committed."""
        return self.offsets.get(group, topic, queue_id)

    def apply(self, position: int, kind: str, body: bytes) -> None:
        """Take the change of the record at physical offset ``position`` unless a newer one is held.

        A kind that this version does not know is left alone: it belongs to a later one.

        Raises:
            Corrupt: the body is not of its kind's shape.
        """
        self.newest_record = max(self.newest_record, position)
        try:
            self._apply(position, kind, json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"state record at physical offset {position}: not a {kind} ({error!r}); kept for inspection",
                offset=position,
            ) from error

    def apply_own(self, position: int, kind: str, body: bytes) -> None:
        """Apply a record that this broker has just appended; its dispatch later costs nothing."""
        self.apply(position, kind, body)
        self._applied[position] = json.loads(body)["topicName"] if kind == TOPIC_DELETED else ""

    def apply_record(self, position: int, record: bytes) -> str:
        """Apply one dispatched record of the state topic; the topic that it deletes, or an empty string."""
        dropped = self._applied.pop(position, None)
        if dropped is None:
            decoded = decode_record(record)
            kind = decode_properties(decoded.properties).get(TAGS, "")
            self.apply(position, kind, decoded.body)
            dropped = json.loads(decoded.body)["topicName"] if kind == TOPIC_DELETED else ""
        return dropped

    def adopt(self, other: State) -> None:
        """Hold what ``other`` holds, which is nobody's any more. Who listens is told how the topics differ."""
        before = {topic.name: topic for topic in self.topics.values()}
        self.topics.adopt(other.topics)
        self.groups.adopt(other.groups)
        self.offsets.adopt(other.offsets)
        for mine, theirs in zip(self.more, other.more, strict=True):
            mine.adopt(theirs)
        self._applied.clear()
        self.newest_record = other.newest_record
        updated = [topic for topic in self.topics.values() if before.get(topic.name) != topic]
        removed = [name for name in before if name not in self.topics]
        if updated or removed:
            self.on_topics_changed(updated, removed)

    def forget_deleted(self, dispatched: int) -> None:
        """Drop what was kept only to refuse records older than a deletion; none below ``dispatched`` can come."""
        for table in (self.topics, self.groups):
            table.forget_deleted(dispatched)
        self.offsets.forget_deleted(dispatched)
        for more in self.more:
            more.forget_deleted(dispatched)

    def expire(self, now_ms: int) -> None:
        """Drop what nobody has asked for in a long time."""
        for table in self.more:
            table.expire(now_ms)

    def _apply(self, position: int, kind: str, document: dict[str, Any]) -> None:
        if kind == OFFSETS:
            for topic, queues in document["offsets"].items():
                offsets = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
                self.offsets.put(position, document["group"], topic, offsets)
                self.on_offsets_applied(document["group"], topic, offsets)
        elif kind == TOPIC:
            topic_config = Topic.from_json(document)
            before = self.topics.get(topic_config.name)
            if self.topics.put(position, topic_config.name, topic_config) and topic_config != before:
                self.on_topics_changed([topic_config], [])
        elif kind == TOPIC_DELETED:
            self.offsets.delete_topic(position, document["topicName"])
            if self.topics.delete(position, document["topicName"]):
                self.on_offsets_deleted("", document["topicName"])
                self.on_topics_changed([], [document["topicName"]])
        elif kind == GROUP:
            group = Group.from_json(document)
            self.groups.put(position, group.name, group)
        elif kind == GROUP_DELETED:
            self.offsets.delete_group(position, document["groupName"])
            if self.groups.delete(position, document["groupName"]):
                self.on_offsets_deleted(document["groupName"], "")
        elif kind == SEQUENCES:
            self.producers.apply(position, document)
        elif table := next((each for each in self.more if kind in each.kinds), None):
            table.apply(position, kind, document)
        else:
            log.warning("state record of an unknown kind left alone kind=%s position=%d", kind, position)


def _extra(document: Mapping[str, Any], keys: frozenset[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in document.items()
        if name not in keys and (name not in defaults or value != defaults[name])
    }


def encode_topic(topic: Topic) -> bytes:
    """Body of a ``TOPIC`` record."""
    return _compact(topic.to_json())


def encode_topic_deleted(topic: str) -> bytes:
    """Body of a ``TOPIC_DELETED`` record."""
    return _compact({"topicName": topic})


def deleted_topic(record: bytes) -> str:
    """The topic that a record of the state topic deletes, or an empty string."""
    if TOPIC_DELETED.encode() not in record:
        return ""  # nearly all are commits, and the store asks at each
    decoded = decode_record(record)
    if decode_properties(decoded.properties).get(TAGS) != TOPIC_DELETED:
        return ""
    return str(json.loads(decoded.body)["topicName"])


def encode_group(group: Group) -> bytes:
    """Body of a ``GROUP`` record."""
    return _compact(group.to_json())


def encode_group_deleted(group: str) -> bytes:
    """Body of a ``GROUP_DELETED`` record."""
    return _compact({"groupName": group})


def encode_offsets(group: str, offsets: Offsets) -> bytes:
    """Body of an ``OFFSETS`` record."""
    return _compact({"group": group, "offsets": {t: {str(q): o for q, o in qs.items()} for t, qs in offsets.items()}})


def split_offsets(group: str, offsets: Offsets, queues_max: int = 16_384) -> Iterator[bytes]:
    """``OFFSETS`` bodies of at most ``queues_max`` queues each, so that no record outgrows the body limit."""
    part: dict[str, dict[int, int]] = {}
    count = 0
    for topic, queues in offsets.items():
        for queue_id, offset in queues.items():
            part.setdefault(topic, {})[queue_id] = offset
            count += 1
            if count == queues_max:
                yield encode_offsets(group, part)
                part, count = {}, 0
    if part:
        yield encode_offsets(group, part)


def _compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
