"""How far each archive has got in this shard's log: a table derived from state records.

Tag ``ARCHIVED``, body ``{"name": n, "offset": first byte not archived, "updatedMs": t}``; offset -1 removes the name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...core.tables import Table

ARCHIVED: Final = "ARCHIVED"
REMOVED: Final = -1


class Watermark(NamedTuple):
    """What lies below ``offset`` is archived under that name."""

    name: str
    offset: int
    updated_ms: int

    def to_json(self) -> dict[str, Any]:
        """The body of an ``ARCHIVED`` record."""
        return {"name": self.name, "offset": self.offset, "updatedMs": self.updated_ms}


class Watermarks:
    """The archives that this shard waits for before it deletes; event loop only."""

    file_name = "archiveWatermarks.json"
    kinds = frozenset({ARCHIVED})

    def __init__(self) -> None:
        self._table: Table[Watermark] = Table()

    @property
    def base(self) -> int:
        """Records below it are in the snapshot that was loaded."""
        return self._table.base

    @base.setter
    def base(self, position: int) -> None:
        self._table.base = position

    @property
    def changes(self) -> int:
        """Grows with every change."""
        return self._table.changes

    def get(self, name: str) -> Watermark | None:
        """The watermark of that name."""
        return self._table.get(name)

    def values(self) -> list[Watermark]:
        """All of them."""
        return self._table.values()

    def lowest(self) -> Watermark | None:
        """The archive that is furthest behind."""
        return min(self._table.values(), key=lambda mark: mark.offset, default=None)

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        """Take the change of the record at ``position`` unless a newer one is held."""
        mark = Watermark(str(document["name"]), int(document["offset"]), int(document["updatedMs"]))
        if mark.offset == REMOVED:
            self._table.delete(position, mark.name)
        else:
            self._table.put(position, mark.name, mark)

    def repeated(self, position: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, body) of new records for everything that is known from records below ``position``."""
        for name in self._table.older_than(position):
            mark = self._table.get(name)
            if mark is not None:
                yield ARCHIVED, mark.to_json()

    def expire(self, now_ms: int) -> None:
        """Watermarks stay until somebody removes them."""

    def forget_deleted(self, dispatched: int) -> None:
        """Drop the memory of removals below ``dispatched``."""
        self._table.forget_deleted(dispatched)

    def adopt(self, other: Watermarks) -> None:
        """Hold what ``other`` holds, which is nobody's any more."""
        self._table.adopt(other._table)

    def load(self, document: Mapping[str, Any]) -> None:
        """Take a snapshot. Raises KeyError, TypeError or ValueError when it is none."""
        for name, (offset, updated_ms) in document["watermarks"].items():
            self._table.load(str(name), Watermark(str(name), int(offset), int(updated_ms)))

    def pieces(self) -> Iterator[str]:
        """The fields of a snapshot as JSON text."""
        yield '\t"watermarks":'
        yield json.dumps({mark.name: [mark.offset, mark.updated_ms] for mark in self._table.values()})
