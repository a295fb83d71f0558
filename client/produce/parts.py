"""Messages on their way: what is queued, sent and settled together."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Column, hashes_of, lengths_of
from penstock.formats.record.compression import decompress
from penstock.formats.record.layout import SysFlag
from penstock.proto.errors import CorruptBatch, MessageTooLarge, MessageTypeConflict, OutcomeUnknown, PenstockError

from ..cluster.retry import NEVER

RECORD_COST = 112
"""What a message counts in batches and buffers besides its body and properties: the record's fixed fields, and some
for its topic."""

WAITING_COST = 2048
"""What one counts besides in buffers if somebody waits for it: its future, message and receipt, as Python has them."""

LANES = 8
"""Lanes of one topic at one broker group. A queue always belongs to the same one: its id modulo this."""


class Kind(enum.Enum):
    """Who waits for a message."""

    PRODUCE = "produce"  # nobody: retried for long, failures told by flush
    SEND = "send"  # a caller or a future
    ONEWAY = "oneway"  # nobody, and one try is enough


class Owner(Protocol):
    """Somebody who has to know what became of the messages of a part."""

    def on_stored(self, broker_name: str, first: int, count: int, epoch: int) -> None:
        """So many lie at that broker group, from that offset of the stored queue on, in that epoch of its log."""

    def on_given_up(self, count: int, error: PenstockError) -> None:
        """So many are not stored, or it is not known."""


@dataclass(slots=True, eq=False)
class Part:
    """Messages of one topic and kind, in order. Split when its queues lie in several lanes.

    ``bodies`` and ``properties`` have one item per message (no properties: ``None``). ``hashes`` are the sharding
    keys' hashes, ``keyed`` which messages have such a key (all: ``None``). ``place``: the queue of the sender's choice.
    A part without ``hashes`` and ``place`` may go to any queue. ``is_whole``: its messages are never parted, and it has
    one future, which ends with a :class:`~.receipts.RunReceipt`.
    """

    kind: Kind
    bodies: Sequence[bytes] | Column
    properties: Sequence[bytes | None] | Column | None
    cost: int
    deadline: float  # monotonic seconds
    ticket: int = 0
    hashes: npt.NDArray[np.int32] | None = None
    keyed: npt.NDArray[np.bool_] | None = None
    place: tuple[str, int] | None = None  # broker name and queue id
    lengths: npt.NDArray[np.int64] | None = None  # of the bodies, where they are known already
    queue_ids: npt.NDArray[np.int32] | None = None  # once its lane is chosen by hash
    futures: list[Future[Any]] = field(default_factory=list)  # SEND: one per message, or for all (is_whole)
    message_ids: list[str] = field(default_factory=list)  # SEND: one per message
    dues_ms: list[int] = field(default_factory=list)  # SEND, of messages for later: one per message
    sys_flag: int = 0
    no_wait: bool = False  # answered when the master has it
    is_whole: bool = False
    attempts: int = 0  # tries that ended without storing
    refusals: int = 0  # those that a broker refused
    not_before: float = 0.0
    trial: object = None  # joined with those of the same one alone: a message of them was refused
    error: PenstockError | None = None  # of the last try
    owner: Owner | None = None  # of halves: their transaction
    is_told: bool = False  # who waited for it has heard, before its batch's end
    held_s: float = 0.0  # monotonic, when its producer took it; of traced ones

    @property
    def count(self) -> int:
        return len(self.bodies)

    @property
    def held_bytes(self) -> int:
        """What it counts in buffers."""
        return self.cost + WAITING_COST * len(self.message_ids)

    @property
    def is_bound(self) -> bool:
        """True if keys or the sender say which queues it goes to."""
        return self.hashes is not None or self.place is not None

    def fail(self, error: BaseException) -> None:
        """Nobody will send it, and whoever follows its futures hears why."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def bind(self, place: tuple[str, int] | None) -> None:
        """Let it go to that queue, if one was chosen, whatever keys its messages have."""
        if place is not None:
            self.place = place
            self.hashes = self.keyed = None

    def body_lengths(self) -> npt.NDArray[np.int64]:
        if self.lengths is not None:
            return self.lengths
        return self.bodies.lengths if isinstance(self.bodies, Column) else lengths_of(self.bodies)

    def body_column(self) -> Column:
        """The bodies as a column, made once."""
        if not isinstance(self.bodies, Column):
            self.bodies = Column.of(self.bodies, self.lengths)
        return self.bodies

    def property_column(self) -> Column | None:
        """The properties as a column, made once; ``None`` when no message has any."""
        if self.properties is not None and not isinstance(self.properties, Column):
            self.properties = Column.of([encoded or b"" for encoded in self.properties])
        return self.properties

    def is_like(self, other: Part) -> bool:
        """True if both may be in one batch."""
        is_alike = self.sys_flag == other.sys_flag and self.no_wait == other.no_wait
        both_stay = (self.kind is Kind.ONEWAY) == (other.kind is Kind.ONEWAY)
        return is_alike and both_stay and self.trial is other.trial

    @property
    def may_share(self) -> bool:
        """True if it may wait for others that share its batch."""
        return self.kind is Kind.SEND and not self.is_bound and not self.attempts and self.trial is None

    def may_take(self, other: Part, bytes_max: int, count_max: int) -> bool:
        """True if ``other``, one waiting message, may become a part of this one, which was never sent."""
        return (
            self.is_like(other)
            and self.kind is other.kind is not Kind.PRODUCE
            and not self.is_bound
            and not other.is_bound
            and not other.is_whole
            and not self.attempts
            and not self.is_told
            and self.owner is other.owner
            and isinstance(self.bodies, list)
            and isinstance(self.properties, list)
            and self.cost + other.cost <= bytes_max
            and self.count < count_max
        )

    def absorb(self, other: Part) -> None:
        """Append the messages of ``other`` (see :meth:`may_take`); the later deadline counts."""
        assert isinstance(self.bodies, list)
        assert isinstance(self.properties, list)
        self.bodies.extend(other.bodies)
        self.properties.extend(other.properties or ())
        self.futures.extend(other.futures)
        self.message_ids.extend(other.message_ids)
        self.dues_ms.extend(other.dues_ms)
        self.cost += other.cost
        self.deadline = max(self.deadline, other.deadline)

    def take(self, chosen: slice | npt.NDArray[np.int64]) -> Part:
        """A part of the chosen messages, in that order, with their share of the cost."""
        picked = {name: _picked(getattr(self, name), chosen) for name in _PER_MESSAGE}
        part = replace(self, **picked)
        part.cost = self.cost * part.count // self.count
        return part

    def split(self, groups: Sequence[npt.NDArray[np.int64]]) -> list[Part]:
        """One part per group of indexes; the groups hold every index once. The costs add up to this one's."""
        parts = [self.take(group) for group in groups]
        parts[-1].cost += self.cost - sum(part.cost for part in parts)
        return parts

    def set_hashes(self, keys: Sequence[str | None]) -> None:
        """Note the hashes of the messages' sharding keys, and which messages have one."""
        self.hashes = hashes_of(Column.of([key.encode() if key is not None else b"" for key in keys]))
        if None in keys:
            self.keyed = np.array([key is not None for key in keys])

    def first_bodies(self, count: int) -> tuple[bytes, ...]:
        return tuple(self.bodies[index] for index in range(min(count, self.count)))

    def bodies_as_given(self) -> tuple[bytes, ...]:
        """Every body as its sender handed it in."""
        if not self.sys_flag & SysFlag.COMPRESSED:
            return tuple(self.bodies)
        return tuple(decompress(body, self.sys_flag) for body in self.bodies)


_PER_MESSAGE = ("bodies", "properties", "hashes", "keyed", "lengths", "queue_ids", "futures", "message_ids", "dues_ms")
"""The fields of a part that have one item per message, or nothing."""


def _picked(values: Any, chosen: slice | npt.NDArray[np.int64]) -> Any:
    if isinstance(values, (list, tuple)):
        if isinstance(chosen, slice):
            return list(values[chosen])
        return [values[index] for index in chosen.tolist()] if values else []
    if isinstance(values, Column):
        return values.part(chosen.start, chosen.stop) if isinstance(chosen, slice) else values.take(chosen)
    return None if values is None else values[chosen]


def cost_of(bodies: Sequence[bytes] | Column, properties: Sequence[bytes | None] | None) -> int:
    """What these messages count in batches, and in buffers if nobody waits for them."""
    size = int(bodies.ends[-1]) if isinstance(bodies, Column) else sum(map(len, bodies))
    cost = size + RECORD_COST * len(bodies)
    if properties is not None:
        cost += sum(len(encoded) for encoded in properties if encoded)
    return cost


def limited(part: Part, bytes_max: int, count_max: int) -> list[Part]:
    """``part`` itself, or pieces of it that are each within the limits (a single message may exceed them).

    The pieces' costs are counted anew.
    """
    if part.cost <= bytes_max and part.count <= count_max:
        return [part]
    part.lengths = part.body_lengths()
    costs = part.lengths + RECORD_COST
    properties = part.property_column()
    if properties is not None:
        costs = costs + properties.lengths
    ends = np.cumsum(costs)
    pieces, start = [], 0
    while start < part.count:
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + bytes_max, side="right"))
        stop = min(max(stop, start + 1), start + count_max, part.count)
        piece = part.take(slice(start, stop))
        piece.cost = int(ends[stop - 1]) - base
        pieces.append(piece)
        start = stop
    return pieces


def new_part(
    kind: Kind, bodies: Sequence[bytes] | Column, properties: Sequence[bytes | None] | None, deadline: float
) -> Part:
    shared = _shared(properties) if kind is Kind.PRODUCE and properties else None
    column = properties if shared is None else Column.repeated(shared, len(bodies))
    cost = cost_of(bodies, properties if shared is None else None) + len(shared or b"") * len(bodies)
    return Part(kind=kind, bodies=bodies, properties=column, cost=cost, deadline=deadline)


def _shared(properties: Sequence[bytes | None]) -> bytes | None:
    """The properties that all messages have, as with one tag; None where there are others, or none."""
    first = properties[0]
    is_shared = properties[-1] is first and properties.count(first) == len(properties)
    return first if is_shared else None


def is_of_one(error: PenstockError) -> bool:
    """True if one message of a batch may be the reason of a refusal, and others may be stored."""
    if isinstance(error, MessageTypeConflict):
        return "index" in error.details
    return isinstance(error, (MessageTooLarge, CorruptBatch))


def halved(parts: list[Part]) -> list[Part]:
    """The same messages in two trials, to find the one that a broker refuses; of one part, which is not whole, two."""
    if len(parts) == 1:
        middle = parts[0].count // 2
        parts = parts[0].split([np.arange(middle), np.arange(middle, parts[0].count)])
    trials = object(), object()
    for index, part in enumerate(parts):
        part.trial = trials[2 * index // len(parts)]
    return parts


class Line(deque[Part]):
    """Parts in order, and what they are together: looking at each would cost more than sending.

    :attr:`earliest`: none of them is late before. ``cost``, ``messages``: their sums. ``unshared``: how many may not
    wait for others. ``partable``: how many are not whole.
    """

    earliest = NEVER
    cost = messages = unshared = partable = 0

    def append(self, part: Part) -> None:
        super().append(part)
        self._came(part)

    def appendleft(self, part: Part) -> None:
        super().appendleft(part)
        self._came(part)

    def popleft(self) -> Part:
        part = super().popleft()
        self.cost -= part.cost
        self.messages -= part.count
        self.unshared -= not part.may_share
        self.partable -= not part.is_whole
        return part

    def absorb(self, part: Part) -> Part:
        """Make ``part`` a part of the last one (see :meth:`Part.may_take`), which is returned."""
        last = self[-1]
        last.absorb(part)
        self.cost += part.cost
        self.messages += part.count
        return last

    def extend(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.append(part)

    def extendleft(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.appendleft(part)

    def clear(self) -> None:
        super().clear()
        self.earliest = NEVER
        self.cost = self.messages = self.unshared = self.partable = 0

    def _came(self, part: Part) -> None:
        self.earliest = min(self.earliest, part.deadline)
        self.cost += part.cost
        self.messages += part.count
        self.unshared += not part.may_share
        self.partable += not part.is_whole

    def look(self) -> None:
        """Have ``earliest`` exact again: parts that left may have been the earliest."""
        self.earliest = min((part.deadline for part in self), default=NEVER)


class Lane:
    """One ordered stream of batches to one broker group."""

    __slots__ = ("batch", "broker_name", "number", "owes_a_turn", "pending", "retry_at", "sequence")

    def __init__(self, broker_name: str, number: int) -> None:
        self.broker_name = broker_name
        self.number = number
        self.sequence = 0  # of the last batch made
        self.batch: Batch | None = None  # under way, or waiting for its next try
        self.pending = Line()  # behind it, queues chosen
        self.retry_at = 0.0  # nothing of pending starts before
        self.owes_a_turn = False  # the next batch is for what waits for any queue

    @property
    def key(self) -> tuple[str, int]:
        return self.broker_name, self.number

    @property
    def is_free(self) -> bool:
        """True if a batch may start without overtaking anything."""
        return self.batch is None and not self.pending


@dataclass(slots=True, eq=False)
class Batch:
    """Parts that are one Append: one lane, one sequence number. Encoded once, sent until its outcome is known."""

    lane: Lane
    parts: list[Part]
    sequence: int
    queue_ids: npt.NDArray[np.int32]  # one per message
    message: bytes = b""  # framed; empty until encoded
    record_sizes: npt.NDArray[np.int64] | None = None
    attempts: int = 0
    sent_at: float = 0.0
    retry_at: float | None = None  # None: under way
    unknown: OutcomeUnknown | None = None  # a try ended without word: it may be stored
    cost: int = field(init=False)
    tells_at: float = field(init=False)
    """When the first sender has waited long enough, of a batch that is tried on for others; else never."""

    def __post_init__(self) -> None:
        self.cost = sum(part.cost for part in self.parts)
        self._look()

    def take_late(self, now: float) -> list[Future[Any]]:
        """The futures of senders that have waited long enough; the batch has them no more."""
        late = [part for part in self.parts if part.deadline <= now]
        futures = [future for part in late for future in part.futures]
        for part in late:
            part.futures, part.is_told = [], True
        self._look()
        return futures

    def _look(self) -> None:
        is_mixed = any(part.kind is Kind.PRODUCE for part in self.parts)
        self.tells_at = min((part.deadline for part in self.parts if is_mixed and part.futures), default=NEVER)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def deadline(self) -> float:
        return max(part.deadline for part in self.parts)

    def is_small(self, bytes_max: int) -> bool:
        """True for a batch that other waiting messages could have shared, and whose answer is near."""
        first, is_first_try = self.parts[0], not self.attempts and self.retry_at is None
        return is_first_try and first.kind is Kind.SEND and not first.is_bound and self.cost < bytes_max


class Failure(NamedTuple):
    """Messages that are given up, and why."""

    parts: list[Part]
    error: PenstockError
