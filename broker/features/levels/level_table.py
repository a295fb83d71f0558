"""How far the messages of each delay level are delivered: a table derived from state records.

Tag ``DELAY_OFFSETS``, body ``{"offsets": {"3": 17, …}}``: of each level, from 1 on, the next offset to deliver in its
queue of the schedule topic. The snapshot is RocketMQ's ``delayOffset.json``, keys quoted, so either takes the other's
progress over. The record is written some time after the deliveries; what the log holds of these tells the rest
(:mod:`.level_queues`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...core.tables.table import LOADED, StateRecord, Table

DELAY_OFFSETS: Final = "DELAY_OFFSETS"


class LevelTable(Table):
    """Level -> next offset to deliver."""

    file_name = "delayOffset.json"
    kinds = frozenset({DELAY_OFFSETS})

    def __init__(self) -> None:
        super().__init__()
        self.offsets: dict[int, int] = {}
        self.position = LOADED  # of the record

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        offsets = _offsets(document["offsets"])
        if position >= self.base and position > self.position:
            self.offsets, self.position = offsets, position
            self.changes += 1

    def repeated(self, position: int) -> Iterator[StateRecord]:
        if self.offsets and self.position < position:
            yield DELAY_OFFSETS, document_of(self.offsets)

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        self.offsets, self.position = _offsets(document["offsetTable"]), LOADED

    def pieces(self) -> Iterator[str]:
        yield '\t"offsetTable":'
        yield json.dumps(document_of(self.offsets)["offsets"])


def document_of(offsets: Mapping[int, int]) -> dict[str, Any]:
    """The body of a ``DELAY_OFFSETS`` record."""
    return {"offsets": {str(level): offset for level, offset in sorted(offsets.items())}}


def _offsets(document: Mapping[str, Any]) -> dict[int, int]:
    """Raises KeyError, TypeError or ValueError if it is no such table."""
    return {int(level): int(offset) for level, offset in document.items()}
