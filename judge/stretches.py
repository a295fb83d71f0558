"""What the rows of a stretch of one stream show: I2, I19, I20, what is stored again, latencies and rates.

And I1 of what was acknowledged without a place, as ``produce`` is: it has to be read in the shard that took it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .conditions import Conditions
from .history import Op, Outcome
from .invariants.pop import popped
from .pieces import STRETCH_ROWS, Column, Rows, take
from .tally import EXAMPLES_MAX, Tally, message_name, shard_name

_NEVER = np.iinfo(np.int64).max


class Stretch:
    """Messages of one stream whose sequences lie beside each other: what was told of each fits into small tables."""

    def __init__(self, stream: int, rows: Rows, shards: Sequence[str], conditions: Conditions) -> None:
        self._stream = stream
        self._shards = shards
        self._conditions = conditions
        self._rows = {**rows, "at": rows["sequence"] % STRETCH_ROWS}

    def judge(self, tally: Tally) -> None:
        """Add what is found to ``tally``."""
        op, outcome = self._rows["op"], self._rows["outcome"]
        self._phantoms(tally)
        self._stored_again(tally)
        popped(self._stream, self._rows, self._conditions, tally)
        sent = take(self._rows, (op == Op.SEND) & (outcome == Outcome.OK))
        received = take(self._rows, op == Op.RECEIVE)
        self._lost(tally, take(sent, sent["queue"] < 0))
        tally.on_sent(sent)
        tally.on_received(received)
        delivered = np.full(STRETCH_ROWS, _NEVER)
        last_first = take(received, np.argsort(received["end_ns"], kind="stable")[::-1])
        delivered[last_first["at"]] = last_first["end_ns"]
        first = delivered[sent["at"]]
        tally.on_delivered((first - sent["start_ns"])[first != _NEVER])

    def _lost(self, tally: Tally, sent: Rows) -> None:
        """I1 of what was sent and says no place, at most its shard."""
        tally.checked["I1"] += len(sent["at"])
        read = take(self._rows, self._rows["op"] == Op.READ)
        is_there = np.isin(_shard_and_message(sent), _shard_and_message(read))
        is_there |= (sent["shard"] < 0) & np.isin(sent["at"], read["at"])
        missing = take(sent, ~is_there)
        is_excused = self._conditions.may_lose(missing["end_ns"])
        lost = take(missing, ~is_excused)
        self._tell(tally, "I1", lost, "was acknowledged and is not there")
        tally.on_lost({**lost, "stream": np.full(len(lost["at"]), self._stream)}, int(is_excused.sum()))

    def _phantoms(self, tally: Tally) -> None:
        """I2."""
        op, outcome = self._rows["op"], self._rows["outcome"]
        seen = take(self._rows, (op == Op.READ) | (op == Op.RECEIVE))
        possible = self._marked((op == Op.SEND) & (outcome != Outcome.REFUSED))
        refused = self._marked((op == Op.SEND) & (outcome == Outcome.REFUSED))
        tally.checked["I2"] += len(seen["at"])
        wrong = take(seen, ~possible[seen["at"]])
        was_refused = refused[wrong["at"]]
        self._tell(tally, "I2", take(wrong, was_refused), "was read and had been refused")
        others = take(wrong, ~was_refused)
        if len(others["at"]):
            reserved = np.zeros(STRETCH_ROWS, np.bool_)
            announced = take(self._rows, op == Op.INVOKE)
            for at, count in zip(announced["at"].tolist(), announced["offset"].tolist(), strict=True):
                reserved[at : at + count] = True
            self._tell(tally, "I2", take(others, ~reserved[others["at"]]), "was read and never sent")

    def _stored_again(self, tally: Tally) -> None:
        """I7: what was read at more than one place."""
        read = take(self._rows, self._rows["op"] == Op.READ)
        read = take(read, np.argsort(read["end_ns"], kind="stable"))
        queues = (read["shard"].astype(np.int64) << 16) | (read["queue"].astype(np.int64) & 0xFFFF)
        first_queue, first_offset = np.zeros(STRETCH_ROWS, np.int64), np.zeros(STRETCH_ROWS, np.int64)
        first_queue[read["at"][::-1]], first_offset[read["at"][::-1]] = queues[::-1], read["offset"][::-1]
        elsewhere = (queues != first_queue[read["at"]]) | (read["offset"] != first_offset[read["at"]])
        wrong = take(read, elsewhere)
        if len(wrong["at"]):
            places = np.stack([wrong["at"], queues[elsewhere], wrong["offset"]])
            wrong = take(wrong, np.sort(np.unique(places, axis=1, return_index=True)[1]))
        self._tell(tally, "I7", wrong, "is stored again")

    def _marked(self, chosen: Column) -> Column:
        marks = np.zeros(STRETCH_ROWS, np.bool_)
        marks[self._rows["at"][chosen]] = True
        return marks

    def _tell(self, tally: Tally, invariant: str, wrong: Rows, what: str) -> None:
        columns = (wrong[name][:EXAMPLES_MAX].tolist() for name in ("sequence", "shard", "queue", "offset"))
        texts = [
            f"{message_name(self._stream, sequence, shard_name(self._shards, shard), queue, at)} {what}"
            for sequence, shard, queue, at in zip(*columns, strict=True)
        ]
        tally.tell(invariant, texts, len(wrong["at"]))


def _shard_and_message(rows: Rows) -> Column:
    numbers: Column = rows["shard"].astype(np.int64) * STRETCH_ROWS + rows["at"]
    return numbers
