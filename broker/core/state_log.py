"""The master's way to change the state: a record in the state topic first, the tables at once after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock.formats.record.batch import BatchEncoder
from penstock.formats.record.layout import Host
from penstock.formats.record.properties import TAGS, encode_properties
from penstock.proto import names

from . import state as kinds
from .state import Group, Offsets, State, Topic

if TYPE_CHECKING:
    from ..store.results import AppendResult


class AppendLog(Protocol):
    """What of the store this module needs."""

    def append(self, topic: str, records: memoryview, *, queues: int) -> AppendResult: ...


class StateLog:
    """Appends changes of the state to the log and applies them; event loop of the master only.

    Each method returns the end of its record: the change is visible here at once, it is durable and
    replicated when the acknowledgement of that position says so. ``on_appended(end)`` is called after each
    record, so that the owner starts flush, replication and dispatch of it.
    """

    def __init__(self, state: State, store: AppendLog, born_host: Host, on_appended: Callable[[int], None]) -> None:
        self.state = state
        self._store = store
        self._encoder = BatchEncoder(names.STATE_TOPIC, born_host, store_v6=born_host.is_ipv6)
        self._properties = {
            kind: encode_properties({TAGS: kind})
            for kind in (kinds.TOPIC, kinds.TOPIC_DELETED, kinds.GROUP, kinds.GROUP_DELETED, kinds.OFFSETS)
        }
        self._on_appended = on_appended

    def put_topic(self, topic: Topic) -> int:
        """Create or change a topic."""
        return self._append(kinds.TOPIC, kinds.encode_topic(topic))

    def delete_topic(self, topic: str) -> int:
        """Delete a topic and every offset committed in it."""
        return self._append(kinds.TOPIC_DELETED, kinds.encode_topic_deleted(topic))

    def put_group(self, group: Group) -> int:
        """Create or change a consumer group."""
        return self._append(kinds.GROUP, kinds.encode_group(group))

    def delete_group(self, group: str) -> int:
        """Delete a consumer group and its committed offsets."""
        return self._append(kinds.GROUP_DELETED, kinds.encode_group_deleted(group))

    def ensure_group(self, group: str) -> int | None:
        """Create ``group`` with default settings unless it exists; None when it did."""
        return self.put_group(Group(names.check_group(group))) if self.state.group(group) is None else None

    def commit(self, group: str, offsets: Offsets) -> int | None:
        """Set committed offsets as given; one record, unless there are very many. None when there was nothing to set.

        The caller has checked them: the last record wins, back or forth.
        """
        changed: Mapping[str, Mapping[int, int]] = {
            topic: kept
            for topic, queues in offsets.items()
            if (kept := {q: o for q, o in queues.items() if self.state.committed(group, topic, q) != o})
        }
        return self.record(group, changed)

    def record(self, group: str, offsets: Offsets) -> int | None:
        """Put offsets into the log whether or not the tables hold them already."""
        end = None
        for body in kinds.split_offsets(group, offsets):
            end = self._append(kinds.OFFSETS, body)
        return end

    def repeat_older(self, position: int) -> Iterator[int]:
        """Record again whatever is in the tables by a record below ``position``; yields the end of each new record.

        So nothing is missing in a log that begins at ``position``: a replica that has only that has all.
        """
        for name in self.state.topics.older_than(position):
            topic = self.state.topic(name)
            if topic is not None:
                yield self.put_topic(topic)
        for name in self.state.groups.older_than(position):
            group = self.state.group(name)
            if group is not None:
                yield self.put_group(group)
        for group_name, topic_name in self.state.offsets.older_than(position):
            end = self.record(group_name, {topic_name: self.state.offsets.row(group_name, topic_name)})
            if end is not None:
                yield end
        for repeated in (self.state.producers.repeated, *(table.repeated for table in self.state.more)):
            for kind, document in repeated(position):
                yield self.put(kind, document)

    def put(self, kind: str, document: Mapping[str, Any]) -> int:
        """Record a change of one of the tables in ``State.more``."""
        self._properties.setdefault(kind, encode_properties({TAGS: kind}))
        return self._append(kind, json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())

    def _append(self, kind: str, body: bytes) -> int:
        records = self._encoder.encode([body], [self._properties[kind]])
        result = self._store.append(names.STATE_TOPIC, records, queues=1)
        self.state.apply_own(result.start, kind, body)
        self._on_appended(result.end)
        return result.end
