"""A history cut into pieces that can be judged by themselves: one queue's rows, or those of a stretch of a stream.

What happened at a place (I1, I3, I4, I5, deliveries) is seen in its queue's rows; what became of a message (I2, stored
again, latencies) in those of its stream and sequence. So every row goes where it is needed, most of them to both.
What simple consumers had and acknowledged (I19, I20) goes there too. What was given back, decided or sent for later
(I15, I17, I18) goes whole to its message's stretch, and an orderly member's work (I16) to its queue; these are few.
A piece holds the columns of its rows one behind the other, so that they are joined and judged without a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .history import EVENT, DamagedHistory, Op, Outcome

Column = npt.NDArray[Any]
Rows = Mapping[str, Column]
"""Columns of the same length, by name."""
Group = tuple[int, int, int, dict[str, Column]]
"""Kind, its two numbers, and the rows of a whole queue or stretch."""

QUEUE, STRETCH, PROMISES, WORK = range(4)
QUEUE_FIELDS = ("start_ns", "end_ns", "sequence", "offset", "stream", "crc", "key", "epoch", "op")
"""Of a queue's rows. Those with op POSITION have the maximum offset in ``start_ns``."""
STRETCH_FIELDS = ("start_ns", "end_ns", "sequence", "offset", "shard", "queue", "op", "outcome")
FIELDS = {QUEUE: QUEUE_FIELDS, STRETCH: STRETCH_FIELDS, PROMISES: EVENT.names or (), WORK: EVENT.names or ()}
_PROMISED = [Op.GIVE_BACK, Op.CAME_AGAIN, Op.RETURNED, Op.DEAD, Op.DECIDE, Op.LATER, Op.SHOWN]
STRETCH_BITS = 16
STRETCH_ROWS = 1 << STRETCH_BITS
"""Sequences of one stretch of a stream."""
SEQUENCE_BITS = 40
NOBODY = 0xFFFF_FFFF
"""The stream of what a reader found that is not of its run."""
STREAMS_MAX = (1 << (63 - SEQUENCE_BITS)) - 1
ANNOUNCED_MAX = 1 << 32
"""Sequences that one row may announce."""


class Piece(NamedTuple):
    """Some rows of a queue (``a`` shard, ``b`` queue id) or a stretch (``a`` stream, ``b`` its number).

    Of kind WORK they are a queue's, of kind PROMISES a stretch's.
    """

    part: int  # whose task judges it
    kind: int
    a: int
    b: int
    rows: int
    data: bytes


def split(events: Column, parts: int) -> Iterator[Piece]:
    """The pieces of ``events``, an array of :data:`EVENT`; for ``2 * parts`` tasks.

    Raises DamagedHistory: a message's number is out of range.
    """
    op, outcome = (np.ascontiguousarray(events[name]) for name in ("op", "outcome"))
    stream, sequence = (events[name][op != Op.POSITION] for name in ("stream", "sequence"))
    if len(sequence):
        low, high = int(sequence.min()), int(sequence.max())
        known = stream[stream != NOBODY]
        if low < 0 or high >= 1 << SEQUENCE_BITS or int(known.max(initial=0)) >= STREAMS_MAX:
            raise DamagedHistory(
                f"a history numbers messages from {low} to {high}, streams up to {known.max(initial=0)}: "
                f"sequences below 2^{SEQUENCE_BITS} and streams below {STREAMS_MAX} are possible"
            )
    is_message = (op == Op.SEND) | (op == Op.RECEIVE) | (op == Op.READ)
    is_held = (op == Op.HOLD) | (op == Op.ACKNOWLEDGE)
    yield from _stretches(events, np.flatnonzero(is_message | is_held), parts)
    announced = _cut_to_stretches(events[op == Op.INVOKE])
    yield from _stretches(announced, np.arange(len(announced)), parts)
    yield from _stretches(events, np.flatnonzero(np.isin(op, _PROMISED)), parts, PROMISES)
    has_place = (op != Op.SEND) | ((outcome == Outcome.OK) & (events["queue"] >= 0))
    yield from _queues(events, np.flatnonzero((op == Op.POSITION) | (is_message & has_place)), parts)
    yield from _queues(events, np.flatnonzero(op == Op.WORK), parts, WORK)


def grouped(pieces: Iterable[tuple[int, int, int, tuple[int, int], int, Any]]) -> Iterator[Group]:
    """The whole queues and stretches that pieces make up: kind, two numbers, place in the order, rows and their buffer.

    Rows of one file, which the first number of the place names, must stay in their order.
    """
    found: dict[tuple[int, int, int], list[tuple[tuple[int, int], int, Any]]] = {}
    for kind, a, b, place, count, data in pieces:
        found.setdefault((kind, a, b), []).append((place, count, data))
    for kind, a, b in sorted(found):
        ordered = sorted(found.pop((kind, a, b)), key=lambda piece: piece[0])
        yield kind, a, b, _joined([(count, data) for _, count, data in ordered], kind)


def _joined(pieces: Iterable[tuple[int, Any]], kind: int) -> dict[str, Column]:
    columns: dict[str, list[Column]] = {name: [] for name in FIELDS[kind]}
    for count, data in pieces:
        at = 0
        for name, found in columns.items():
            found.append(np.frombuffer(data, EVENT[name], count, at))
            at += EVENT[name].itemsize * count
    return {name: found[0] if len(found) == 1 else np.concatenate(found) for name, found in columns.items()}


def take(rows: Rows, chosen: Column) -> dict[str, Column]:
    """The rows that a mask or indexes choose."""
    return {name: column[chosen] for name, column in rows.items()}


def message_ids(rows: Rows | Column) -> Column:
    """Stream and sequence as one number."""
    return _numbered(rows["stream"], rows["sequence"])


def _numbered(stream: Column, number: Column) -> Column:
    numbers: Column = np.minimum(stream.astype(np.int64), STREAMS_MAX) << SEQUENCE_BITS | number
    return numbers


def _stretches(events: Column, chosen: Column, parts: int, kind: int = STRETCH) -> Iterator[Piece]:
    keys = _numbered(events["stream"], events["sequence"] >> STRETCH_BITS)
    for at, count, data in _runs(keys, chosen, events, FIELDS[kind]):
        stream, number = int(events["stream"][at]), int(events["sequence"][at]) >> STRETCH_BITS
        yield Piece((number + 31 * stream) % parts + parts, kind, stream, number, count, data)


def _queues(events: Column, chosen: Column, parts: int, kind: int = QUEUE) -> Iterator[Piece]:
    keys = events["shard"].astype(np.int64) << 16 | (events["queue"].astype(np.int64) & 0xFFFF)
    for at, count, data in _runs(keys, chosen, events, FIELDS[kind]):
        shard, queue = int(events["shard"][at]), int(events["queue"][at])
        yield Piece((queue + 31 * shard) % parts, kind, shard, queue, count, data)


def _cut_to_stretches(announced: Column) -> Column:
    """Rows that announce sequences, each once for every stretch that it reaches into, and cut to it."""
    first, count = announced["sequence"], np.maximum(announced["offset"], 0)
    if int(count.max(initial=0)) > ANNOUNCED_MAX:
        raise DamagedHistory(
            f"a history announces {count.max()} messages at once: at most {ANNOUNCED_MAX} are possible"
        )
    end = first + count
    low, high = first >> STRETCH_BITS, -(-end >> STRETCH_BITS)
    which = np.repeat(np.arange(len(announced)), high - low)
    number = np.arange(len(which)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[which]
    rows = announced[which]
    rows["sequence"] = np.maximum(first[which], number << STRETCH_BITS)
    rows["offset"] = np.minimum(end[which], (number + 1) << STRETCH_BITS) - rows["sequence"]
    return rows


def _runs(keys: Column, chosen: Column, events: Column, fields: tuple[str, ...]) -> Iterator[tuple[int, int, bytes]]:
    """Of each key among the ``chosen`` rows: the index of one, how many they are, and their columns, in their order."""
    if not len(chosen):
        return
    chosen = chosen[np.argsort(keys[chosen], kind="stable")]
    borders = np.flatnonzero(np.diff(keys[chosen])) + 1
    columns = [_column(events, name, chosen) for name in fields]  # _joined takes them apart again
    edges = [0, *borders.tolist(), len(chosen)]
    for start, end in itertools.pairwise(edges):
        yield int(chosen[start]), end - start, b"".join(column[start:end].tobytes() for column in columns)


def _column(events: Column, name: str, chosen: Column) -> Column:
    column: Column = events[name][chosen]
    if name == "start_ns":
        looks = events["op"][chosen] == Op.POSITION
        if looks.any():
            column[looks] = events["position"][chosen[looks]]
    return column
