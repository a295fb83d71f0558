"""How far each archive has got in this shard's log: a table derived from state records.

Tag ``ARCHIVED``, body ``{"name": n, "offset": first byte not archived, "updatedMs": t}``; offset -1 removes the name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...core.tables.table import NamedTable, StateRecord

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


class Watermarks(NamedTable[Watermark]):
    """The archives that this shard waits for before it deletes."""

    file_name = "archiveWatermarks.json"
    kinds = frozenset({ARCHIVED})

    def lowest(self) -> Watermark | None:
        """The archive that is furthest behind, or None."""
        return min(self.values(), key=lambda mark: mark.offset, default=None)

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        mark = Watermark(str(document["name"]), int(document["offset"]), int(document["updatedMs"]))
        if mark.offset == REMOVED:
            self.delete(position, mark.name)
        else:
            self.put(position, mark.name, mark)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for mark in self.older_than(position):
            yield ARCHIVED, mark.to_json()

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        for name, (offset, updated_ms) in document["watermarks"].items():
            self.put_loaded(str(name), Watermark(str(name), int(offset), int(updated_ms)))

    def pieces(self) -> Iterator[str]:
        yield '\t"watermarks":'
        yield json.dumps({mark.name: [mark.offset, mark.updated_ms] for mark in self.values()})
