"""How far transactions are done with: a table derived from state records.

Tag ``TX_DONE``, body ``{"ops": offset}``: what was decided by the ops below that offset is posted. So whoever is master
after a long time need not rely on the marks of what was posted, which are forgotten in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...core.tables.table import LOADED, StateRecord, Table

TX_DONE: Final = "TX_DONE"


class TransactionTable(Table):
    """The ops that need not be looked after any more."""

    file_name = "transactionOps.json"
    kinds = frozenset({TX_DONE})

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0
        self._position = LOADED  # of its record

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        ops = int(document["ops"])
        if position >= self.base and position > self._position:
            self.ops, self._position = ops, position
            self.changes += 1

    def repeated(self, position: int) -> Iterator[StateRecord]:
        if self.ops and self._position < position:
            yield TX_DONE, {"ops": self.ops}

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        self.ops, self._position = int(document["ops"]), LOADED

    def pieces(self) -> Iterator[str]:
        yield f'\t"ops":{self.ops}'
