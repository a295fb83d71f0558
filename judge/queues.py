"""What one queue's rows show: I1, I3, I4, I5, what was delivered again, and the epochs of I9.

I4 has three parts. A acknowledged before B was sent: A lies before B. Messages of one stream and key lie as they were
sent, those that nobody acknowledged too; a key moves to another queue while its broker group has no master, and between
queues there is no order. What a queue delivers for the first time comes in the order of its offsets.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from .conditions import RETURN_NS, Conditions
from .history import NO_KEY, Op
from .pieces import Column, Rows, message_ids, take
from .tally import EXAMPLES_MAX, Tally, message_name

SILENT_NS = 500_000_000
"""Two acknowledgements of a queue that takes messages, and commits, are not further apart."""


class Queue:
    """One queue: where it is, what happened to it, and what its drill allows."""

    def __init__(self, shard: int, queue: int, name: str, rows: Rows, conditions: Conditions) -> None:
        self.shard = shard
        self._queue = queue
        self._shard_name = name
        self._conditions = conditions
        self._sent = take(rows, rows["op"] == Op.SEND)
        self._received = take(rows, rows["op"] == Op.RECEIVE)
        self._looks = take(rows, rows["op"] == Op.POSITION)
        read = take(rows, rows["op"] == Op.READ)
        self._read = take(read, np.lexsort((read["end_ns"], read["offset"])))
        self._first_read = take(self._read, _is_new(self._read["offset"]))

    def judge(self, tally: Tally) -> None:
        """Add what is found to ``tally``."""
        tally.checked["I1"] += len(self._sent["offset"])
        is_lost, is_excused = self._lost()
        lost = take(self._sent, is_lost)
        self._tell(tally, "I1", lost, "was acknowledged and is not there")
        tally.on_lost(lost, int(is_excused.sum()))
        self._one_value(tally)
        tally.checked["I4"] += len(self._sent["offset"])
        self._tell(tally, "I4", self._sent_too_late(), "was sent after one behind it was acknowledged")
        # What was read says its key where the load's messages have it; else only what is known to be stored is judged.
        keyed = self._first_read if (self._first_read["key"] != NO_KEY).any() else self._sent
        self._tell(tally, "I4", _keys_swapped(keyed), "lies behind a later one of its key")
        self._deliveries(tally)
        tally.checked["I5"] += len(self._read["offset"])
        gaps = np.flatnonzero(np.diff(self._first_read["offset"]) != 1) + 1
        before = self._first_read["offset"][gaps[:EXAMPLES_MAX] - 1].tolist()
        self._tell(tally, "I5", take(self._first_read, gaps), [f"follows offset {offset}" for offset in before])
        self._looked(tally)
        known = take(self._sent, self._sent["epoch"] > 0)
        tally.checked["I9"] += len(known["epoch"])
        tally.on_epochs(self.shard, known)

    def missing(self) -> dict[str, Column]:
        """Acknowledged sends that are not read at their place, without those that the mode allows to lose."""
        return take(self._sent, self._lost()[0])

    def _lost(self) -> tuple[Column, Column]:
        """Which acknowledged sends are missing, and which are missing as the mode allows."""
        sent, read = self._sent, self._first_read
        present = np.zeros(len(sent["offset"]), np.bool_)
        if len(read["offset"]):
            at = np.minimum(np.searchsorted(read["offset"], sent["offset"]), len(read["offset"]) - 1)
            found = read["offset"][at] == sent["offset"]
            present = found & (message_ids(read)[at] == message_ids(sent))
            self._look_at_other_reads(present, found)
        excused = self._is_excused(present)
        return ~present & ~excused, ~present & excused

    def _look_at_other_reads(self, present: Column, found: Column) -> None:
        """A place may have been read several times, and not always as the same message."""
        doubtful = np.flatnonzero(found & ~present)
        if len(doubtful):
            read = take(self._read, np.isin(self._read["offset"], self._sent["offset"][doubtful]))
            pairs = set(zip(read["offset"].tolist(), message_ids(read).tolist(), strict=True))
            sent = take(self._sent, doubtful)
            wanted = zip(sent["offset"].tolist(), message_ids(sent).tolist(), strict=True)
            present[doubtful] = [pair in pairs for pair in wanted]

    def _is_excused(self, present: Column) -> Column:
        """Which the mode may lose, with nothing of their epoch left behind them."""
        sent = self._sent
        at_fault = self._conditions.may_lose(sent["end_ns"])
        for epoch in np.unique(sent["epoch"][at_fault & ~present]).tolist():
            tenure = sent["epoch"] == epoch
            last = sent["offset"][tenure & present].max(initial=-1)
            at_fault[tenure] &= sent["offset"][tenure] > last
        return at_fault

    def _one_value(self, tally: Tally) -> None:
        """I3."""
        told = (self._read, self._received, take(self._sent, self._sent["offset"] >= 0))
        offsets = np.concatenate([rows["offset"] for rows in told])
        ids = np.concatenate([message_ids(rows) for rows in told])
        order = np.argsort(offsets, kind="stable")
        offsets, ids = offsets[order], ids[order]
        is_new = _is_new(offsets)
        tally.checked["I3"] += int(is_new.sum())
        differ = np.flatnonzero(~is_new[1:] & (np.diff(ids) != 0)) + 1
        if len(differ):
            everything = {name: np.concatenate([rows[name] for rows in told]) for name in self._sent}
            one_of_each = differ[np.unique(offsets[differ], return_index=True)[1]]
            wrong, other = (take(everything, order[which]) for which in (one_of_each, one_of_each - 1))
            others = zip(*(other[name][:EXAMPLES_MAX].tolist() for name in ("stream", "sequence")), strict=True)
            self._tell(tally, "I3", wrong, [f"shares its place with {stream}.{number}" for stream, number in others])

    def _sent_too_late(self) -> dict[str, Column]:
        sent = take(self._sent, np.argsort(self._sent["offset"], kind="stable"))
        behind = np.minimum.accumulate(sent["end_ns"][::-1])[::-1]  # the earliest from here on
        return take(sent, np.flatnonzero(behind[1:] < sent["start_ns"][:-1]))

    def _deliveries(self, tally: Tally) -> None:
        """The part of I4 that is about them, and I7's."""
        received = take(self._received, np.argsort(self._received["end_ns"], kind="stable"))
        is_first = np.zeros(len(received["offset"]), np.bool_)
        is_first[np.unique(received["offset"], return_index=True)[1]] = True
        first = take(received, is_first)
        backwards = take(first, np.flatnonzero(np.diff(first["offset"]) < 0) + 1)
        self._tell(tally, "I4", backwards, "was delivered after one behind it")
        tally.checked["I7"] += len(is_first)
        again = take(received, ~is_first)
        tally.delivered_again += len(again["offset"])
        if self._conditions.far_ms is not None:
            far = self._read_far(first, again, self._conditions.far_ms * 1_000_000)
            self._tell(tally, "I7", far, f"was delivered again from more than {self._conditions.far_ms} ms back")
        left = EXAMPLES_MAX - len(tally.again_examples)
        tally.again_examples += [f"{text} was delivered again" for text in self._names(again)[:left]]

    def _read_far(self, first: Rows, again: Rows, far_ns: int) -> dict[str, Column]:
        """Those that came again though the group was far beyond them, and no consumer's death explains it.

        How far is measured by the deliveries before, as while nothing is delivered, nothing falls behind; and in the
        time in which the queue acknowledges sends, as commits are refused in the rest. A death explains it until the
        queue has gone on: what was delivered for the first time behind it shows where others took over.
        """
        progress = first["end_ns"][np.maximum(np.searchsorted(first["end_ns"], again["end_ns"]) - 1, 0)]
        by_offset = np.argsort(first["offset"], kind="stable")
        seen = first["end_ns"][by_offset][np.searchsorted(first["offset"][by_offset], again["offset"])]
        is_far = self._open_ns(progress) - self._open_ns(seen) > far_ns
        for window in self._conditions.windows:
            if window.target.startswith("consumer"):
                at = int(np.searchsorted(first["end_ns"], window.end_ns + far_ns, side="right"))
                gone_on_ns = first["end_ns"][at] if at < len(first["end_ns"]) else np.iinfo(np.int64).max
                is_meanwhile = (again["end_ns"] >= window.start_ns) & (again["end_ns"] < gone_on_ns)
                is_far &= ~(is_meanwhile & (seen <= window.end_ns))
        return take(again, is_far)

    def _open_ns(self, at: Column) -> Column:
        """How long the queue had acknowledged sends by then, with half a second at most between two of them."""
        ends = np.sort(self._sent["end_ns"])
        if not len(ends):
            return at
        open_ns = np.concatenate([[0], np.cumsum(np.minimum(np.diff(ends), SILENT_NS))])
        last = np.maximum(np.searchsorted(ends, at, side="right") - 1, 0)
        passed: Column = open_ns[last] + np.minimum(at - ends[last], SILENT_NS)
        return passed

    def _looked(self, tally: Tally) -> None:
        looks = take(self._looks, np.argsort(self._looks["end_ns"], kind="stable"))
        columns = (looks[name].tolist() for name in ("end_ns", "sequence", "start_ns", "offset"))
        acknowledged = np.sort(self._sent["end_ns"]).tolist()
        wrong = went_back(list(zip(*columns, strict=True)), self._conditions, self._shard_name, acknowledged)
        tally.tell("I5", [f"{self._shard_name} queue {self._queue}: {text}" for text in wrong], len(wrong))

    def _tell(self, tally: Tally, invariant: str, wrong: Rows, what: str | Sequence[str]) -> None:
        """Count the rows; ``what`` is wrong with all of them, or with each of the first."""
        names = self._names(wrong)
        told = [what] * len(names) if isinstance(what, str) else what
        texts = [f"{name} {text}" for name, text in zip(names, told, strict=True)]
        tally.tell(invariant, texts, len(wrong["offset"]))

    def _names(self, rows: Rows) -> list[str]:
        columns = (rows[name][:EXAMPLES_MAX].tolist() for name in ("stream", "sequence", "offset"))
        return [
            message_name(stream, number, self._shard_name, self._queue, at)
            for stream, number, at in zip(*columns, strict=True)
        ]


def _keys_swapped(rows: Rows) -> dict[str, Column]:
    """The messages that lie behind a later one of their stream and key; one that is stored again counts once."""
    rows = take(rows, rows["key"] != NO_KEY)
    rows = take(rows, np.argsort(rows["offset"], kind="stable"))
    rows = take(rows, np.unique(message_ids(rows), return_index=True)[1])
    rows = take(rows, np.lexsort((rows["offset"], rows["key"], rows["stream"])))
    together = (np.diff(rows["stream"].astype(np.int64)) == 0) & (np.diff(rows["key"]) == 0)
    return take(rows, np.flatnonzero(together & (np.diff(rows["sequence"]) < 0)) + 1)


def _is_new(offsets: Column) -> Column:
    """Which of sorted offsets are not the one before."""
    marks = np.ones(len(offsets), np.bool_)
    marks[1:] = np.diff(offsets) != 0
    return marks


def went_back(
    looks: Sequence[tuple[int, int, int, int]], conditions: Conditions, shard: str, acknowledged: Sequence[int] = ()
) -> list[str]:
    """What is wrong with ``looks`` at one queue of ``shard``: (time, minimum, maximum, committed), by time.

    While something is broken, a slave may answer that has not heard yet how far all is confirmed: then the maximum may
    be behind for that time, if it comes back. The committed offset may go back at a change of master, to what was
    committed one commit interval before it, or before the master was cut off or lost the slaves that it needs to
    acknowledge; that is what a slave has at least. It never returns to the beginning.
    ``acknowledged``: when sends to the queue were, ascending; none: at all times.
    """
    if len(looks) < 2:
        return []
    times, lowest, highest, committed = (np.array(column, np.int64) for column in zip(*looks, strict=True))
    found = [
        f"the min offset went back from {lowest[at]} to {lowest[at + 1]}"
        for at in np.flatnonzero(lowest[1:] < lowest[:-1]).tolist()
    ]
    if conditions.is_replicated:  # in other modes, what was lost at a failover was seen before
        for at in np.flatnonzero(highest[1:] < highest[:-1]).tolist():
            returns = highest[-1] >= highest[at] and conditions.is_broken(int(times[at + 1]))
            if not returns:
                found.append(f"the max offset went back from {highest[at]} to {highest[at + 1]}")
    peaks = np.maximum.accumulate(committed)
    interval_ns = conditions.commit_interval_ms * 1_000_000
    for at in np.flatnonzero(committed[1:] < committed[:-1]).tolist():
        shared_ns = _last_shared(int(times[at]), conditions, shard, acknowledged)
        settled = int(np.searchsorted(times, shared_ns - interval_ns, side="right"))
        floor = int(peaks[settled - 1]) if settled else -1
        if committed[at + 1] < floor or (committed[at + 1] <= 0 and floor > 0):
            found.append(
                f"the committed offset went back from {committed[at]} to {committed[at + 1]}; {floor} was committed "
                f"{conditions.commit_interval_ms} ms before"
            )
    return found


def _last_shared(at_ns: int, conditions: Conditions, shard: str, acknowledged: Sequence[int]) -> int:
    """That time, or the begin of a partition that it lies in: a master cut off goes on telling what it took last.

    So does one without slaves, which acknowledges nothing.
    """
    cut_off = [
        window.start_ns
        for window in conditions.windows
        if window.start_ns <= at_ns < window.end_ns + RETURN_NS
        and window.target.startswith(shard)
        and window.what.startswith(("partition", "lost on the way"))
    ]
    before = bisect.bisect_right(acknowledged, at_ns)
    return min([*cut_off, acknowledged[before - 1] + SILENT_NS if before else at_ns, at_ns])
