"""What ``produce`` appends to: the open messages of a topic.

``produce`` may cost a microsecond, so it takes no lock. It relies on one fact: ``list.append`` and ``list.extend``
with a tuple are atomic in CPython, and so are taking a slice and deleting it. One list per topic is never replaced;
whoever seals it, alone under the topic's lock, copies its first n items and then deletes just those n. Appends by other
threads only ever add behind them, so no message is lost and none is there twice.

A message with nothing but a body is one item, which costs least. Any other is four: ``MORE``, the body and the rest.
"""

from __future__ import annotations

import operator
from typing import Any, Final, NamedTuple

from penstock.formats.columns import Column

MORE: Final = object()
"""Says that body, encoded properties or None, and sharding key or None of one message follow."""
_ITEMS = 4  # of such a message


class Drained(NamedTuple):
    """Messages, column by column; ``None``: no message has a value."""

    bodies: Column
    properties: list[bytes | None] | None
    keys: list[str | None] | None


class Accumulator:
    """The open messages of one topic.

    ``append(body)`` or ``extend((MORE, body, properties, sharding_key))`` is all that a message costs. ``cost`` is a
    running estimate that threads may overwrite for each other: it decides when to seal, nothing else. Above ``limit`` a
    message waits for room in the buffer first; the limit is 0 while the buffer may have no room for as much as was
    sealed at most.
    """

    __slots__ = ("_items", "append", "cost", "extend", "limit", "opened_at")

    def __init__(self, limit: int) -> None:
        self._items: list[Any] = []
        self.append = self._items.append
        self.extend = self._items.extend
        self.cost = 0
        self.limit = limit
        self.opened_at: float | None = None  # when the sender saw the first open message; the sender's own

    def __bool__(self) -> bool:
        """True if a message is open."""
        return bool(self._items)

    def __len__(self) -> int:
        """How many messages are open; takes a while."""
        items = self._items[:]
        return len(items) - (_ITEMS - 1) * items.count(MORE)

    def drain(self) -> Drained:
        """All open messages, which are open no more. Call it under the topic's lock only."""
        items = self._items
        taken = items[:]
        del items[: len(taken)]
        self.cost = 0
        self.opened_at = None
        column = Column.listed(taken)
        if column is not None:
            return Drained(column, None, None)
        if taken[::_ITEMS].count(MORE) * _ITEMS != len(taken):
            taken = _alike(taken)
        bodies, properties, keys = (taken[field::_ITEMS] for field in range(1, _ITEMS))
        count = len(bodies)
        return Drained(
            Column.listed(bodies) or Column.of(bodies),
            None if properties.count(None) == count else properties,
            None if keys.count(None) == count else keys,
        )

    def withdraw(self, body: bytes, properties: bytes | None, key: str | None) -> bool:
        """Take one open message of exactly these objects back. Returns False if there is no such message.

        Call it under the topic's lock only.
        """
        items, at = self._items, 0
        sought = [body] if properties is None else [MORE, body, properties, key]
        while at < len(items):
            end = at + (_ITEMS if items[at] is MORE else 1)
            if end - at == len(sought) and all(map(operator.is_, items[at:end], sought)):
                del items[at:end]
                return True
            at = end
        return False


def _alike(items: list[Any]) -> list[Any]:
    """The same messages, of four items each."""
    each, alike = iter(items), list[Any]()
    for item in each:
        alike += (MORE, next(each), next(each), next(each)) if item is MORE else (MORE, item, None, None)
    return alike
