"""What ``produce`` appends to: the open messages of a topic.

``produce`` may cost a microsecond, so it takes no lock. It relies on one fact: ``list.extend`` with a tuple is
atomic in CPython, and so are taking a slice and deleting it. One list per topic is never replaced; whoever seals it,
alone under the topic's lock, copies its first n items and then deletes just those n. Appends by other threads
only ever add behind them, so no message is lost and none is there twice.
"""

from __future__ import annotations

_FIELDS = 3  # body, encoded properties or None, sharding key or None


class Accumulator:
    """The open messages of one topic.

    ``extend((body, properties, sharding_key))`` is all that a message costs. ``cost`` is a running estimate that
    threads may overwrite for each other: it decides when to seal, nothing else. Above ``limit`` a message waits for
    room in the buffer first; the limit is 0 while the buffer may have no room for as much as was sealed at most.
    """

    __slots__ = ("_items", "cost", "extend", "limit", "opened_at")

    def __init__(self, limit: int) -> None:
        self._items: list[object] = []
        self.extend = self._items.extend
        self.cost = 0
        self.limit = limit
        self.opened_at: float | None = None  # when the sender saw the first open message; the sender's own

    def __len__(self) -> int:
        return len(self._items) // _FIELDS

    def drain(self) -> tuple[list[bytes], list[bytes | None] | None, list[str | None] | None]:
        """Bodies, properties and sharding keys of all open messages, which are open no more.

        A list in which no message has a value is ``None``. Call it under the topic's lock only.
        """
        items = self._items
        taken = items[:]
        del items[: len(taken)]
        self.cost = 0
        self.opened_at = None
        bodies: list[bytes] = taken[0::_FIELDS]  # type: ignore[assignment]
        properties: list[bytes | None] = taken[1::_FIELDS]  # type: ignore[assignment]
        keys: list[str | None] = taken[2::_FIELDS]  # type: ignore[assignment]
        count = len(bodies)
        return (
            bodies,
            None if properties.count(None) == count else properties,
            None if keys.count(None) == count else keys,
        )

    def withdraw(self, body: bytes, properties: bytes | None, key: str | None) -> bool:
        """Take one open message of exactly these objects back. Returns False if there is no such message.

        Call it under the topic's lock only.
        """
        items = self._items
        for at in range(0, len(items), _FIELDS):
            if items[at] is body and items[at + 1] is properties and items[at + 2] is key:
                del items[at : at + _FIELDS]
                return True
        return False
