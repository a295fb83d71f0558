"""What tables that are derived from the log have in common.

The truth is the log: every change of a table is a record of the internal topic ``names.STATE_TOPIC`` (queue 0), so a
replica that has the log has the tables. The tag of such a record is its *kind*, the body compact JSON; each table's
module says what its kinds hold.

Each entry of a table knows the physical offset of the record it came from. A record is applied only if it is newer
than what the entry holds, newer than the entry's deletion, and not below ``base``, the log position up to which a
loaded snapshot already holds everything. So a record may be applied again without effect: the master applies its own
at append, every role applies all at dispatch, a start replays.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

V = TypeVar("V")

LOADED: Final = -1
"""Position of entries that came from a snapshot: older than every record at or above the snapshot's position."""

StateRecord = tuple[str, dict[str, Any]]
"""Kind and body of a record of the state topic."""


class Table(ABC):
    """One table: its record kinds, its snapshot file, and how it follows the log. Event loop only.

    Attributes whose names begin with ``on_`` are for those who listen; they stay when the content is exchanged.
    """

    file_name: ClassVar[str]
    kinds: ClassVar[frozenset[str]]

    def __init__(self) -> None:
        self.base = 0  # records below it are in the snapshot that was loaded
        self.changes = 0  # grows with every change that took effect; snapshots compare it
        self.newest_record = -1  # where the newest record begins whose change is, or was, in here

    def note(self, position: int) -> None:
        """The record at ``position`` is about to be applied."""
        self.newest_record = max(self.newest_record, position)

    @abstractmethod
    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        """Take the change of the record at ``position`` unless it is known or a newer one is held.

        Raises KeyError, TypeError, ValueError: the document is not of its kind's shape.
        """

    @abstractmethod
    def repeated(self, position: int) -> Iterator[StateRecord]:
        """Records that say again what is known from records below ``position``, or nobody knows where.

        The table may change between two of them: each is made of what the table holds then. An older value would
        undo the change, since its record comes behind.
        """

    @abstractmethod
    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        """Take a snapshot, without what lies behind ``log_end`` where that can be told.

        Raises KeyError, TypeError, ValueError: the document is no snapshot of this table.
        """

    @abstractmethod
    def pieces(self) -> Iterator[str]:
        """The fields of a snapshot as JSON text, each piece quickly made; the table may change in between."""

    def import_from(self, directory: Path) -> None:  # noqa: B027  most have nothing
        """Take what RocketMQ says of it in files of another shape; called where RocketMQ wrote the snapshots."""

    def expire(self, now_ms: int) -> None:  # noqa: B027  most have nothing
        """Drop what nobody has asked for in a long time."""

    def forget_deleted(self, dispatched: int) -> None:  # noqa: B027  most have nothing
        """Drop what is kept only to refuse records older than a deletion; none below ``dispatched`` can come."""

    def adopt(self, other: Self) -> None:
        """Hold what ``other`` holds, which is nobody's any more."""
        changes = self.changes + 1
        vars(self).update({name: value for name, value in vars(other).items() if not name.startswith("on_")})
        self.changes = changes


class NamedTable(Table, Generic[V]):
    """Name -> value, each with the position of its record."""

    def __init__(self) -> None:
        super().__init__()
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

    def older_than(self, position: int) -> Iterator[V]:
        """Values whose record lies below ``position``, or nobody knows where; those that go meanwhile are left out."""
        for name in [name for name, held in self._positions.items() if held < position]:
            if name in self._values:
                yield self._values[name]

    def on_exchanged(self, before: V | None, after: V | None) -> None:
        """A value has taken the place of another one, or of none, or is gone; for tables that keep an index."""

    def put_loaded(self, name: str, value: V) -> None:
        """Take ``value`` from a snapshot."""
        self._set(LOADED, name, value)

    def put(self, position: int, name: str, value: V) -> bool:
        """Take ``value`` from the record at ``position``; false when something newer is held."""
        if self._is_old(position, name):
            return False
        self._set(position, name, value)
        self.changes += 1
        return True

    def delete(self, position: int, name: str) -> bool:
        """Remove ``name`` by the record at ``position``; false when something newer is held or nothing was there."""
        if self._is_old(position, name):
            return False
        self._deleted[name] = position
        self._positions.pop(name, None)
        self.changes += 1
        before = self._values.pop(name, None)
        if before is not None:
            self.on_exchanged(before, None)
        return before is not None

    def deleted_at(self, name: str) -> int:
        """Where the record begins that deleted ``name`` last; -1 when nobody need know that any more."""
        return self._deleted.get(name, LOADED)

    def forget_deleted(self, dispatched: int) -> None:
        self._deleted = {name: position for name, position in self._deleted.items() if position >= dispatched}

    def _set(self, position: int, name: str, value: V) -> None:
        before, self._values[name] = self._values.get(name), value
        self._positions[name] = position
        self.on_exchanged(before, value)

    def _is_old(self, position: int, name: str) -> bool:
        held = max(self._positions.get(name, LOADED), self._deleted.get(name, LOADED))
        return position < self.base or position <= held


def compact(document: Mapping[str, Any]) -> bytes:
    """The body of a state record."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def json_entries(items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """The fields of a JSON object, one a piece, and the white space before its end."""
    separator = "\n"
    for name, value in items:
        yield f"{separator}\t\t{json.dumps(name)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        separator = ",\n"
    yield "\n\t"
