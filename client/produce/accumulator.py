"""What ``produce`` appends to, and the limit on what is accepted and not yet acknowledged.

``produce`` may cost a microsecond, so it takes no lock. It relies on one fact: ``list.extend`` with a tuple is
atomic in CPython, and so are taking a slice and deleting it. One list per topic is never replaced; whoever seals it,
alone under the topic's lock, copies its first n items and then deletes just those n. Appends by other threads
only ever add behind them, so no message is lost and none is there twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from penstock.proto.errors import BufferFull

from .columns import Column
from .parts import RECORD_COST, Kind, Part

_FIELDS = 3  # body, encoded properties or None, sharding key or None


class Accumulator:
    """The open messages of one topic.

    ``extend((body, properties, sharding_key))`` is all that a message costs. ``cost`` is a running estimate that
    threads may overwrite for each other: it decides when to seal, nothing else.
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
        """Take one open message of exactly these objects back; whether there was one.

        Call it under the topic's lock only.
        """
        items = self._items
        for at in range(0, len(items), _FIELDS):
            if items[at] is body and items[at + 1] is properties and items[at + 2] is key:
                del items[at : at + _FIELDS]
                return True
        return False


def cost_of(bodies: Sequence[bytes], properties: Sequence[bytes | None] | None) -> int:
    """What these messages count in buffers and batches."""
    cost = sum(map(len, bodies)) + RECORD_COST * len(bodies)
    if properties is not None:
        cost += sum(len(encoded) for encoded in properties if encoded)
    return cost


def limited(part: Part, bytes_max: int, count_max: int) -> list[Part]:
    """``part`` itself, or pieces of it that are each within the limits (a single message may exceed them).

    The pieces' costs are counted anew.
    """
    if part.cost <= bytes_max and part.count <= count_max:
        return [part]
    lengths = part.body_lengths()
    costs = lengths + RECORD_COST
    properties = part.property_column()
    if properties is not None:
        costs = costs + properties.lengths
    ends = np.cumsum(costs)
    pieces, start = [], 0
    while start < part.count:
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + bytes_max, side="right"))
        stop = min(max(stop, start + 1), start + count_max, part.count)
        piece = Part(
            kind=part.kind,
            bodies=part.bodies.part(start, stop) if isinstance(part.bodies, Column) else part.bodies[start:stop],
            properties=properties.part(start, stop) if properties is not None else None,
            cost=int(ends[stop - 1]) - base,
            deadline=part.deadline,
            ticket=part.ticket,
            lengths=lengths[start:stop],
            hashes=part.hashes[start:stop] if part.hashes is not None else None,
            keyed=part.keyed[start:stop] if part.keyed is not None else None,
            futures=part.futures[start:stop],
            message_ids=part.message_ids[start:stop],
            sys_flag=part.sys_flag,
        )
        pieces.append(piece)
        start = stop
    return pieces


class Buffer:
    """How much is accepted and not yet settled; who flushes or needs room waits here. Thread-safe.

    Each sealed part holds a ticket, in order of acceptance, until all its messages are settled.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._changed = threading.Condition()
        self._used = 0
        self._last_ticket = 0
        self._live: dict[int, int] = {}  # ticket -> messages to settle, oldest first

    @property
    def used(self) -> int:
        """Bytes held."""
        return self._used

    @property
    def pending(self) -> int:
        """Messages held."""
        with self._changed:
            return sum(self._live.values())

    def has_room(self, cost: int) -> bool:
        """Whether ``cost`` fits now."""
        return self._used + cost <= self.bytes_max or not self._used

    def wait_for_room(self, cost: int, timeout_s: float, on_wait: Callable[[], None]) -> None:
        """Return when ``cost`` fits; calls ``on_wait`` once before it waits.

        More than the whole buffer fits when the buffer is empty.

        Raises:
            BufferFull: it did not within ``timeout_s``.
        """
        if self.has_room(cost):
            return
        on_wait()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._used and self._used + cost > self.bytes_max:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BufferFull(
                        f"buffer full: {self._used} of {self.bytes_max} bytes wait for acknowledgement, and none "
                        f"came within {timeout_s:g} s: raise buffer_bytes, or look at the brokers"
                    )
                self._changed.wait(left)

    def hold(self, cost: int, count: int) -> int:
        """Count ``count`` messages in, whatever room there is; the ticket to settle them with."""
        with self._changed:
            self._used += cost
            self._last_ticket += 1
            self._live[self._last_ticket] = count
            return self._last_ticket

    def merge(self, ticket: int, other: int) -> None:
        """The messages held under ``other`` are held under ``ticket`` from now on."""
        with self._changed:
            self._live[ticket] = self._live.get(ticket, 0) + self._live.pop(other, 0)

    def settle(self, part: Part) -> None:
        """Count the messages of ``part`` out."""
        with self._changed:
            self._used -= part.cost
            left = self._live.get(part.ticket, 0) - part.count
            if left > 0:
                self._live[part.ticket] = left
            else:
                self._live.pop(part.ticket, None)
            self._changed.notify_all()

    def wait_settled(self, timeout_s: float) -> bool:
        """Whether everything that is held now is settled within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            last = self._last_ticket
            while self._live and next(iter(self._live)) <= last:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True


def new_part(kind: Kind, bodies: Sequence[bytes], properties: Sequence[bytes | None] | None, deadline: float) -> Part:
    """A part of ``bodies``, with its cost."""
    return Part(kind=kind, bodies=bodies, properties=properties, cost=cost_of(bodies, properties), deadline=deadline)
