"""SQL92 subscriptions of groups: a table from state records, with RocketMQ's ``consumerFilter.json`` as its snapshot.

| Tag | Body |
|---|---|
| ``CONSUMER_FILTER`` | an entry of ``consumerFilter.json``: ``topic``, ``consumerGroup``, ``expression``, … |
| ``CONSUMER_FILTER_DELETED`` | ``topic`` and ``consumerGroup``: the group subscribes otherwise now, or no more |
| ``TOPIC_DELETED``, ``GROUP_DELETED`` | of :mod:`.topics` and :mod:`.groups`: their entries go too |

Nothing here filters by it, since fetches bring their conditions; RocketMQ's brokers do, and find it when they take the
store over. They take every consumer for dead at their start, so who is there now is not recorded.
Source: RocketMQ ``ConsumerFilterManager``; differs: it forgets an entry a day after its consumers have gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.formats.bloom import BITS, bit_positions

from .groups import GROUP_DELETED
from .table import NamedTable, StateRecord
from .topics import TOPIC_DELETED

CONSUMER_FILTER: Final = "CONSUMER_FILTER"
CONSUMER_FILTER_DELETED: Final = "CONSUMER_FILTER_DELETED"
FILTERS_MAX: Final = 10_000
"""More are not recorded: a consumer gets what it wants without."""


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """One group's condition on one topic; ``dead_ms``: when RocketMQ saw its last consumer go, 0 if that is not known.

    ``bits``: what RocketMQ's Bloom filter knows it by, of ``bit_count``.
    """

    topic: str
    group: str
    expression: str
    born_ms: int
    dead_ms: int = 0
    version: int = 0
    bit_count: int = 0
    bits: tuple[int, ...] = ()

    @classmethod
    def new(cls, topic: str, group: str, expression: str, now_ms: int) -> ConsumerFilter:
        """A condition that the group has from now on."""
        bits = tuple(bit_positions(group, topic))
        return cls(topic, group, expression, now_ms, 0, now_ms, BITS, bits)

    @property
    def name(self) -> str:
        """The filter's name in the table."""
        return name_of(self.topic, self.group)

    def to_json(self) -> dict[str, Any]:
        """An entry of ``consumerFilter.json``, field names sorted as RocketMQ writes them."""
        document: dict[str, Any] = {"bornTime": self.born_ms, "clientVersion": self.version}
        if self.bits:
            document = {"bloomFilterData": {"bitNum": self.bit_count, "bitPos": list(self.bits)}, **document}
        document |= {"consumerGroup": self.group, "dead": self.dead_ms >= self.born_ms, "deadTime": self.dead_ms}
        return document | {"expression": self.expression, "expressionType": "SQL92", "topic": self.topic}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ConsumerFilter:
        """The condition of such an entry. Raises KeyError, TypeError, ValueError or AttributeError if it is none."""
        bloom = document.get("bloomFilterData") or {}
        return cls(
            topic=str(document["topic"]),
            group=str(document["consumerGroup"]),
            expression=str(document["expression"]),
            born_ms=int(document.get("bornTime", 0)),
            dead_ms=int(document.get("deadTime", 0)),
            version=int(document.get("clientVersion", 0)),
            bit_count=int(bloom.get("bitNum", 0)),
            bits=tuple(int(bit) for bit in bloom.get("bitPos") or ()),
        )


class ConsumerFilters(NamedTable[ConsumerFilter]):
    """The SQL92 conditions of all groups, by :func:`name_of`."""

    file_name = "consumerFilter.json"
    kinds = frozenset({CONSUMER_FILTER, CONSUMER_FILTER_DELETED, TOPIC_DELETED, GROUP_DELETED})

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[str, dict[str, None]] = {}  # by group
        self._groups: dict[str, dict[str, None]] = {}  # by topic

    def topics_of(self, group: str) -> list[str]:
        """The topics on which the group has a condition."""
        return list(self._topics.get(group, ()))

    def on_exchanged(self, before: ConsumerFilter | None, after: ConsumerFilter | None) -> None:
        each = after or before
        assert each is not None
        for index, key, other in ((self._topics, each.group, each.topic), (self._groups, each.topic, each.group)):
            if after is not None:
                index.setdefault(key, {})[other] = None
            else:
                del index[key][other]
                if not index[key]:
                    del index[key]

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if kind == CONSUMER_FILTER:
            told = ConsumerFilter.from_json(document)
            self.put(position, told.name, told)
        elif kind == CONSUMER_FILTER_DELETED:
            self.delete(position, name_of(document["topic"], document["consumerGroup"]))
        else:
            topic, group = str(document.get("topicName", "")), str(document.get("groupName", ""))
            names = [name_of(topic, each) for each in self._groups.get(topic, ())]
            for name in (*names, *(name_of(each, group) for each in self._topics.get(group, ()))):
                self.delete(position, name)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for each in self.older_than(position):
            yield CONSUMER_FILTER, each.to_json()

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        tables = (topic["groupFilterData"] for topic in document["filterDataByTopic"].values())
        for each in [ConsumerFilter.from_json(entry) for table in tables for entry in table.values()]:
            self.put_loaded(each.name, each)

    def pieces(self) -> Iterator[str]:
        by_topic: dict[str, list[ConsumerFilter]] = {}
        for each in self.values():
            by_topic.setdefault(each.topic, []).append(each)
        yield '\t"filterDataByTopic":{'
        separator = "\n"
        for topic, found in by_topic.items():
            entries = {each.group: each.to_json() for each in found}
            content = json.dumps({"groupFilterData": entries, "topic": topic}, ensure_ascii=False)
            yield f"{separator}\t\t{json.dumps(topic)}:{content}"
            separator = ",\n"
        yield "\n\t}"


def name_of(topic: str, group: str) -> str:
    """The name of an entry; neither of the two may hold the character between them."""
    return f"{topic}@{group}"
