"""Tables of log-derived values: every entry knows the physical offset of the record it came from.

A record is applied only if it is newer than what the entry holds, newer than the entry's deletion, and not
below ``base``, the log position up to which a loaded snapshot already holds everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")

LOADED = -1
"""Position of entries that came from a snapshot: older than every record at or above the snapshot's position."""


class Table(Generic[V]):
    """Name -> value, each with the position of its record."""

    def __init__(self) -> None:
        self.base = 0
        self.changes = 0  # grows with every change that took effect; snapshots compare it
        self._values: dict[str, V] = {}
        self._positions: dict[str, int] = {}
        self._deleted: dict[str, int] = {}

    def get(self, name: str) -> V | None:
        """The value, or None."""
        return self._values.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def values(self) -> list[V]:
        """All values, as they stand now."""
        return list(self._values.values())

    def older_than(self, position: int) -> list[str]:
        """Names whose record lies below ``position``, or nobody knows where."""
        return [name for name, held in self._positions.items() if held < position]

    def adopt(self, other: Table[V]) -> None:
        """Hold what ``other`` holds, which is nobody's any more."""
        changes = self.changes + 1
        vars(self).update(vars(other))
        self.changes = changes

    def load(self, name: str, value: V) -> None:
        """Take ``value`` from a snapshot."""
        self._values[name] = value
        self._positions[name] = LOADED

    def put(self, position: int, name: str, value: V) -> bool:
        """Take ``value`` from the record at ``position``; false when something newer is held."""
        if self._is_old(position, name):
            return False
        self._values[name] = value
        self._positions[name] = position
        self.changes += 1
        return True

    def delete(self, position: int, name: str) -> bool:
        """Remove ``name`` by the record at ``position``; false when something newer is held or nothing was there."""
        if self._is_old(position, name):
            return False
        self._deleted[name] = position
        self._positions.pop(name, None)
        self.changes += 1
        return self._values.pop(name, None) is not None

    def forget_deleted(self, dispatched: int) -> None:
        """Drop the memory of deletions below ``dispatched``."""
        self._deleted = {name: position for name, position in self._deleted.items() if position >= dispatched}

    def _is_old(self, position: int, name: str) -> bool:
        held = max(self._positions.get(name, LOADED), self._deleted.get(name, LOADED))
        return position < self.base or position <= held


class OffsetTable:
    """Committed offsets: (group, topic) -> queue id -> next offset to consume."""

    def __init__(self) -> None:
        self.base = 0
        self.changes = 0
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

    def adopt(self, other: OffsetTable) -> None:
        """Hold what ``other`` holds, which is nobody's any more."""
        changes = self.changes + 1
        vars(self).update(vars(other))
        self.changes = changes

    def load(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
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
        if position >= self.base:
            self._topics_deleted[topic] = max(position, self._topics_deleted.get(topic, LOADED))
            self._delete([key for key in self._rows if key[1] == topic], position)

    def delete_group(self, position: int, group: str) -> None:
        """Remove every offset of ``group`` that is older than ``position``."""
        if position >= self.base:
            self._groups_deleted[group] = max(position, self._groups_deleted.get(group, LOADED))
            self._delete([key for key in self._rows if key[0] == group], position)

    def forget_deleted(self, dispatched: int) -> None:
        """Drop the memory of deletions below ``dispatched``."""
        self._topics_deleted = {name: at for name, at in self._topics_deleted.items() if at >= dispatched}
        self._groups_deleted = {name: at for name, at in self._groups_deleted.items() if at >= dispatched}

    def _delete(self, keys: list[tuple[str, str]], position: int) -> None:
        for key in keys:
            kept = {queue_id: held for queue_id, held in self._rows[key].items() if held[1] > position}
            self.changes += len(self._rows[key]) - len(kept)
            if kept:
                self._rows[key] = kept
            else:
                del self._rows[key]
