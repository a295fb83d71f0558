"""Committed offsets: a table derived from state records, with RocketMQ's ``consumerOffset.json`` as its snapshot.

| Tag | Body |
|---|---|
| ``OFFSETS`` | ``{"group": g, "offsets": {topic: {"0": next offset, …}}}``: one commit of any number of queues |
| ``TOPIC_DELETED``, ``GROUP_DELETED`` | of :mod:`.topics` and :mod:`.groups`: what was committed goes too |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.formats.rocketmq_config import OFFSETS_FILE

from .groups import GROUP_DELETED
from .table import LOADED, StateRecord, Table, json_entries
from .topics import TOPIC_DELETED

OFFSETS: Final = "OFFSETS"
AGAIN: Final = "again"
RESET: Final = "reset"
QUEUES_PER_RECORD: Final = 16_384  # so that no record outgrows the body limit

OffsetsByQueue = Mapping[str, Mapping[int, int]]
"""topic -> queue id -> next offset to consume."""

OffsetsApplied = Callable[[str, str, Mapping[int, int]], None]
OffsetsDeleted = Callable[[str, str], None]


class Offsets(Table):
    """Committed offsets: (group, topic) -> queue id -> next offset to consume.

    ``on_applied(group, topic, offsets)`` is called after each commit, ``on_deleted(group, topic)`` when all of a
    group's offsets go with it, or all of a topic's; the other name is empty then.
    """

    file_name = OFFSETS_FILE
    kinds = frozenset({OFFSETS, TOPIC_DELETED, GROUP_DELETED})

    def __init__(self) -> None:
        super().__init__()
        self.on_applied: OffsetsApplied = lambda group, topic, offsets: None
        self.on_deleted: OffsetsDeleted = lambda group, topic: None
        self._rows: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}  # queue id -> (offset, position)
        self._topics_deleted: dict[str, int] = {}
        self._groups_deleted: dict[str, int] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, -1 if there is none."""
        row = self._rows.get((group, topic))
        return row[queue_id][0] if row is not None and queue_id in row else -1

    def row(self, group: str, topic: str) -> dict[int, int]:
        """All committed offsets of ``group`` in ``topic``."""
        return {queue_id: offset for queue_id, (offset, _) in self._rows.get((group, topic), {}).items()}

    def pairs(self) -> list[tuple[str, str]]:
        """The (group, topic) pairs that have offsets."""
        return list(self._rows)

    def older_than(self, position: int) -> list[tuple[str, str]]:
        """The (group, topic) pairs with an offset whose record lies below ``position``, or nobody knows where."""
        return [key for key, row in self._rows.items() if any(held < position for _, held in row.values())]

    def topics_of(self, group: str) -> list[str]:
        """The topics in which ``group`` has offsets."""
        return [topic for holder, topic in self._rows if holder == group]

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if kind == TOPIC_DELETED:
            self.delete_topic(position, document["topicName"])
        elif kind == GROUP_DELETED:
            self.delete_group(position, document["groupName"])
        else:
            group = document["group"]
            for topic, queues in document["offsets"].items():
                offsets = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
                self.put(position, group, topic, offsets)
                self.on_applied(group, topic, offsets)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for group, topic in self.older_than(position):
            queue_ids = list(self._rows.get((group, topic), ()))
            for start in range(0, len(queue_ids), QUEUES_PER_RECORD):
                row = self._rows.get((group, topic), {})  # as it is when this part is recorded
                part = [each for each in queue_ids[start : start + QUEUES_PER_RECORD] if each in row]
                old = {each: row[each][0] for each in part if row[each][1] < position}
                yield from offset_records(group, {topic: old}, **{AGAIN: True})

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        rows = [
            (key.rpartition("@"), {int(queue_id): int(offset) for queue_id, offset in queues.items()})
            for key, queues in document["offsetTable"].items()
        ]
        for (topic, _, group), offsets in rows:
            self.put_loaded(group, topic, offsets)

    def pieces(self) -> Iterator[str]:
        groups: dict[str, list[str]] = {}
        for group, topic in self.pairs():
            groups.setdefault(group, []).append(topic)
        yield '\t"groupTopicMap":{'
        yield from json_entries(groups.items())
        yield '},\n\t"offsetTable":{'
        yield from json_entries((f"{topic}@{group}", self.row(group, topic)) for group, topic in self.pairs())
        yield "}"

    def put_loaded(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Take offsets from a snapshot."""
        row = self._rows.setdefault((group, topic), {})
        for queue_id, offset in offsets.items():
            row[queue_id] = (offset, LOADED)

    def put(self, position: int, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Take offsets from the record at ``position``, queue by queue, where nothing newer is held."""
        deleted = max(self._topics_deleted.get(topic, LOADED), self._groups_deleted.get(group, LOADED))
        if position < self.base or position <= deleted:
            return
        row = self._rows.setdefault((group, topic), {})
        for queue_id, offset in offsets.items():
            held = row.get(queue_id)
            if held is None or held[1] < position:
                row[queue_id] = (offset, position)
                self.changes += 1

    def delete_topic(self, position: int, topic: str) -> None:
        """Remove every offset in ``topic`` that is older than ``position``."""
        if self._delete(position, self._topics_deleted, 1, topic):
            self.on_deleted("", topic)

    def delete_group(self, position: int, group: str) -> None:
        """Remove every offset of ``group`` that is older than ``position``."""
        if self._delete(position, self._groups_deleted, 0, group):
            self.on_deleted(group, "")

    def forget_deleted(self, dispatched: int) -> None:
        self._topics_deleted = {name: at for name, at in self._topics_deleted.items() if at >= dispatched}
        self._groups_deleted = {name: at for name, at in self._groups_deleted.items() if at >= dispatched}

    def _delete(self, position: int, deleted: dict[str, int], place: int, name: str) -> bool:
        """Remove what is older of the rows with that name at that place of their keys; false if it was done before."""
        if position < self.base or position <= deleted.get(name, LOADED):
            return False
        deleted[name] = position
        for key in [key for key in self._rows if key[place] == name]:
            kept = {queue_id: held for queue_id, held in self._rows[key].items() if held[1] > position}
            self.changes += len(self._rows[key]) - len(kept)
            if kept:
                self._rows[key] = kept
            else:
                del self._rows[key]
        return True


def offset_records(group: str, offsets: OffsetsByQueue, **said: object) -> Iterator[StateRecord]:
    """The ``OFFSETS`` records of a commit: one, unless there are very many queues; none if there is no queue.

    ``said``: what stands in each besides.
    """
    queues = ((topic, queue_id, offset) for topic, row in offsets.items() for queue_id, offset in row.items())
    for part in in_records(queues):
        yield OFFSETS, {"group": group, "offsets": part, **said}


def in_records(queues: Iterable[tuple[str, int, int]]) -> Iterator[dict[str, dict[int, int]]]:
    """topic -> queue id -> offset, of as many (topic, queue id, offset) at once as one record holds."""
    rest = iter(queues)
    while some := list(itertools.islice(rest, QUEUES_PER_RECORD)):
        part: dict[str, dict[int, int]] = {}
        for topic, queue_id, offset in some:
            part.setdefault(topic, {})[queue_id] = offset
        yield part
