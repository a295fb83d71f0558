"""Where queues go on of which the log has no record any more: a table derived from state records.

A broker knows the end of each of its queues from the entries that retention leaves behind. A slave that begins with an
empty store has no such entries: without this table it would, once it is master, give offsets again that groups, and the
broker's own features, have passed long ago. So before log files go, their master says where the queues end whose last
record is in them: tag ``QUEUE_ENDS``, body ``{"ends": {topic: {"0": next offset, …}}}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from .offsets import in_records
from .table import LOADED, StateRecord, Table, json_entries
from .topics import TOPIC_DELETED

QUEUE_ENDS: Final = "QUEUE_ENDS"


class QueueEnd(NamedTuple):
    """The offset that the queue's next record gets, if no record of it is left."""

    topic: str
    queue_id: int
    offset: int


class QueueEnds(Table):
    """topic -> queue id -> next offset. A queue with records may be further by now."""

    file_name = "queueEnds.json"
    kinds = frozenset({QUEUE_ENDS, TOPIC_DELETED})

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[str, dict[int, int]] = {}
        self._positions: dict[str, dict[int, int]] = {}  # of their records
        self._deleted: dict[str, int] = {}

    def of(self, topic: str) -> Mapping[int, int]:
        """The ends that are known of the topic's queues."""
        return self._ends.get(topic, {})

    def missing(self, ends: Iterable[QueueEnd]) -> Iterator[StateRecord]:
        """Records of those of ``ends`` that this table does not know, or knows otherwise."""
        return end_records(end for end in ends if self.of(end.topic).get(end.queue_id) != end.offset)

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if kind == TOPIC_DELETED:
            self._delete(position, document["topicName"])
            return
        for topic, queues in document["ends"].items():
            if position < self.base or position <= self._deleted.get(topic, LOADED):
                continue
            for queue_id, offset in queues.items():
                if self._positions.get(topic, {}).get(int(queue_id), LOADED) < position:
                    self._put(position, topic, int(queue_id), int(offset))
                    self.changes += 1

    def repeated(self, position: int) -> Iterator[StateRecord]:
        known = [(topic, queue_id) for topic, row in self._positions.items() for queue_id in row]
        return end_records(
            QueueEnd(topic, queue_id, self._ends[topic][queue_id])
            for topic, queue_id in known
            if self._positions.get(topic, {}).get(queue_id, position) < position
        )

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        ends = [
            QueueEnd(topic, int(queue_id), int(offset))
            for topic, queues in document["queueEnds"].items()
            for queue_id, offset in queues.items()
        ]
        for end in ends:
            self._put(LOADED, *end)

    def pieces(self) -> Iterator[str]:
        yield '\t"queueEnds":{'
        yield from json_entries((topic, self.of(topic)) for topic in list(self._ends))
        yield "}"

    def forget_deleted(self, dispatched: int) -> None:
        self._deleted = {topic: at for topic, at in self._deleted.items() if at >= dispatched}

    def _put(self, position: int, topic: str, queue_id: int, offset: int) -> None:
        self._ends.setdefault(topic, {})[queue_id] = offset
        self._positions.setdefault(topic, {})[queue_id] = position

    def _delete(self, position: int, topic: str) -> None:
        """Remove every end in ``topic`` that is older than ``position``: one made anew begins at 0."""
        if position < self.base or position <= self._deleted.get(topic, LOADED):
            return
        self._deleted[topic] = position
        ends, positions = self._ends.pop(topic, {}), self._positions.pop(topic, {})
        self.changes += bool(ends)
        for queue_id, held in positions.items():
            if held > position:
                self._put(held, topic, queue_id, ends[queue_id])


def end_records(ends: Iterable[QueueEnd]) -> Iterator[StateRecord]:
    """The ``QUEUE_ENDS`` records that say so: one, unless there are very many queues; none if there is no queue."""
    for part in in_records(ends):
        yield QUEUE_ENDS, {"ends": part}
