"""Topics: a table derived from state records, with RocketMQ's ``topics.json`` as its snapshot.

| Tag | Body |
|---|---|
| ``TOPIC`` | an entry of ``topics.json``: ``topicName``, ``readQueueNums``, ``writeQueueNums``, ``perm``, … |
| ``TOPIC_DELETED`` | ``{"topicName": t}``; takes the topic's committed offsets with it (:mod:`.offsets`) |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from penstock.formats.attributes.message_types import MessageType, demanded_type
from penstock.formats.attributes.order_conf import ORDER_CONF
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import TAGS, decode_properties
from penstock.proto import names
from penstock.proto.wire import common_pb2

from .table import NamedTable, StateRecord, json_entries

TOPIC: Final = "TOPIC"
TOPIC_DELETED: Final = "TOPIC_DELETED"

CREATED_MS: Final = "createdMs"
"""A field of ours in a topic's entry. RocketMQ passes over it, and drops it when it writes."""
RETENTION_MS: Final = "retention.ms"
"""Topic attribute: its messages are readable for so long, if their file lives that long; see :mod:`...retention`."""
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"
"""RocketMQ's value of the attribute for topics that keep the last message of each key. There are none here."""

_KEYS: Final = frozenset({"topicName", "readQueueNums", "writeQueueNums", "perm", "attributes"})
_DEFAULTS: Final[Mapping[str, Any]] = {"order": False, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}


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
    def queues(self) -> int:
        """Ids below it are legal, as in RocketMQ: who has an older route may write while the queues are drained."""
        return max(self.read_queues, self.write_queues)

    @property
    def created_ms(self) -> int:
        """When it was created here, which tells it from one of the same name that was deleted; 0 if unknown."""
        found = self.extra.get(CREATED_MS, 0)
        return found if isinstance(found, int) else 0

    @property
    def retention_ms(self) -> int | None:
        """For how long the topic keeps its messages, or None if the log's files decide."""
        text = self.attributes.get(RETENTION_MS, "")
        return int(text) if text.isdecimal() and text.isascii() else None

    @property
    def message_type(self) -> MessageType | None:
        """The one type of messages that it takes, or None if it takes all."""
        return demanded_type(self.attributes)

    @property
    def wire_bytes(self) -> int:
        """About how long the wire's message of this topic is."""
        return 40 + len(self.name) + sum(16 + len(k.encode()) + len(v.encode()) for k, v in self.attributes.items())

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
        document = {**_DEFAULTS, **self.extra}
        document |= {"topicName": self.name, "readQueueNums": self.read_queues, "writeQueueNums": self.write_queues}
        document |= {"perm": self.perm, "attributes": dict(self.attributes)}
        if self.attributes.get(ORDER_CONF):
            document["order"] = True
        return dict(sorted(document.items()))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Topic:
        """The topic of a ``topics.json`` entry. Raises KeyError, TypeError or ValueError if the entry is no topic's."""
        attributes = {str(key): str(value) for key, value in (document.get("attributes") or {}).items()}
        derived = {"order"} if attributes.get(ORDER_CONF) else set[str]()
        return cls(
            name=str(document["topicName"]),
            read_queues=int(document["readQueueNums"]),
            write_queues=int(document["writeQueueNums"]),
            perm=int(document.get("perm", names.PERM_READ_WRITE)),
            attributes=attributes,
            extra=fields_beside(document, _KEYS | derived, _DEFAULTS),
        )


TopicsChanged = Callable[[list[Topic], list[str]], None]


class Topics(NamedTable[Topic]):
    """Every topic of one broker group. ``on_changed(updated, removed)`` is called after each change with an effect."""

    file_name = "topics.json"
    kinds = frozenset({TOPIC, TOPIC_DELETED})

    def __init__(self) -> None:
        super().__init__()
        self.on_changed: list[TopicsChanged] = []
        self.wire_bytes = 0  # of all topics

    def on_exchanged(self, before: Topic | None, after: Topic | None) -> None:
        self.wire_bytes += (after.wire_bytes if after else 0) - (before.wire_bytes if before else 0)

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if kind == TOPIC_DELETED:
            name = document["topicName"]
            if self.delete(position, name):
                self._tell([], [name])
            return
        topic = Topic.from_json(document)
        before = self.get(topic.name)
        if self.put(position, topic.name, topic) and topic != before:
            self._tell([topic], [])

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for topic in self.older_than(position):
            yield TOPIC, topic.to_json()

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        for topic in [Topic.from_json(entry) for entry in document["topicConfigTable"].values()]:
            self.put_loaded(topic.name, topic)

    def pieces(self) -> Iterator[str]:
        yield '\t"topicConfigTable":{'
        yield from json_entries((topic.name, topic.to_json()) for topic in self.values())
        yield "}"

    def adopt(self, other: Self) -> None:
        before = {topic.name: topic for topic in self.values()}
        super().adopt(other)
        updated = [topic for topic in self.values() if before.get(topic.name) != topic]
        removed = [name for name in before if name not in self]
        if updated or removed:
            self._tell(updated, removed)

    def _tell(self, updated: list[Topic], removed: list[str]) -> None:
        for tell in self.on_changed:
            tell(updated, removed)


def fields_beside(document: Mapping[str, Any], keys: frozenset[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The other fields of a RocketMQ table's entry, without those that have their default."""
    return {
        name: value
        for name, value in document.items()
        if name not in keys and (name not in defaults or value != defaults[name])
    }


def deleted_topic(record: bytes) -> str:
    """The topic that a record of the state topic deletes, or an empty string."""
    if TOPIC_DELETED.encode() not in record:
        return ""  # nearly all are commits, and the store asks at each
    decoded = decode_record(record)
    if decode_properties(decoded.properties).get(TAGS) != TOPIC_DELETED:
        return ""
    return str(json.loads(decoded.body)["topicName"])
