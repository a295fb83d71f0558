"""From the pieces of a history to what is found in it, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .history import OK, SEND
from .queues import Queue
from .splitting import QUEUE, Column, join, split
from .stretches import Stretch
from .tally import EXAMPLES_MAX, Tally, message_name, shard_name

_PIECE = pa.schema(
    [
        ("part", pa.int32()),
        ("kind", pa.int32()),
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("number", pa.int32()),  # of the file
        ("first", pa.int64()),  # row of the file that the block began with
        ("rows", pa.int64()),
        ("data", pa.binary()),
    ]
)
_SPARK_TYPES = {pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}
PIECE_SCHEMA = ", ".join(f"{field.name} {_SPARK_TYPES[field.type]}" for field in _PIECE)

Group = tuple[int, int, int, dict[str, Column]]
"""Kind, its two numbers, and the rows of a whole queue or stretch."""


def cut(events: Column, parts: int, number: int, first: int) -> pa.RecordBatch:
    """The pieces of one block of a file, as rows of Spark."""
    rows = [{**piece._asdict(), "number": number, "first": first} for piece in split(events, parts)]
    return pa.RecordBatch.from_pylist(rows, _PIECE)


def groups(batches: Iterable[pa.RecordBatch]) -> Iterator[Group]:
    """The whole queues and stretches that a task's pieces make up; rows of a file stay in their order."""
    found: dict[tuple[int, int, int], list[tuple[int, int, int, Any]]] = {}
    for batch in batches:
        names = ("kind", "a", "b", "number", "first", "rows")
        plain = [batch.column(name).to_pylist() for name in names]
        for kind, a, b, number, first, count, data in zip(*plain, batch.column("data"), strict=True):
            found.setdefault((kind, a, b), []).append((number, first, count, data.as_buffer()))
    for kind, a, b in sorted(found):
        pieces = sorted(found.pop((kind, a, b)), key=lambda piece: piece[:2])
        yield kind, a, b, join(((count, data) for *_, count, data in pieces), kind)


def judge(found: Iterable[Group], shards: Sequence[str], conditions: Mapping[str, Any]) -> Tally:
    """What whole queues and stretches show."""
    tally = Tally()
    for kind, a, b, rows in found:
        if kind == QUEUE:
            Queue(a, b, shard_name(shards, a), rows, conditions).judge(tally)
        else:
            Stretch(a, rows, shards).judge(tally)
    return tally


def settle(total: Tally, conditions: Mapping[str, Any]) -> None:
    """What only the sum shows.

    I1: nothing was read at all. I7: of what was delivered again, only what the faults do not explain counts.
    """
    if not was_read(total) and total.checked["I1"]:
        total.wrong["I1"], total.examples["I1"] = total.checked["I1"], ["nothing was read at the end"]
    surplus = max(total.delivered_again - int(conditions["duplicates_allowed"]), 0)
    total.tell("I7", total.again_examples[:surplus], surplus)


def was_read(total: Tally) -> bool:
    """Whether somebody read what is there at the end."""
    return bool(total.checked["I5"])


def epoch_limits(total: Tally) -> dict[tuple[int, int], int]:
    """I9: shards' epochs in which a send began behind an acknowledgement in a later one, and when that was."""
    limits = {}
    for (shard, epoch), (_, last_start) in total.epochs.items():
        later = [end for (other, number), (end, _) in total.epochs.items() if other == shard and number > epoch]
        if later and last_start > min(later):
            limits[shard, epoch] = min(later)
    return limits


def judge_epochs(events: Column, limits: Mapping[tuple[int, int], int], shards: Sequence[str]) -> Tally:
    """I9, where :func:`epoch_limits` says that it is broken."""
    sent = events[(events["op"] == SEND) & (events["outcome"] == OK)]
    late = np.zeros(len(sent), np.bool_)
    for (shard, epoch), limit in limits.items():
        late |= (sent["shard"] == shard) & (sent["epoch"] == epoch) & (sent["start_ns"] > limit)
    tally = Tally()
    texts = []
    for row in sent[late][:EXAMPLES_MAX]:
        where = shard_name(shards, int(row["shard"]))
        name = message_name(row["stream"], row["sequence"], where, row["queue"], row["offset"])
        texts.append(f"{name} was acknowledged in an epoch below one that had begun")
    tally.tell("I9", texts, int(late.sum()))
    return tally
