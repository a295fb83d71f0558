"""The judge: from a history and the conditions of its drill to one verdict per invariant.

Plain functions over arrays: no sockets, processes or clocks. A history is cut into pieces (:mod:`.pieces`), each of one
queue or of a stretch of one stream. What a whole queue (:mod:`.queues`) or stretch (:mod:`.stretches`) shows goes into
a tally, tallies add up, and :mod:`.judging` says what only the sum shows. So a drill judges its history in one process,
and the pipeline's job ``audit`` one that no process could hold, by the same functions.
"""

from __future__ import annotations

import numpy as np

from .conditions import Conditions
from .history import History, Op
from .invariants import messages, orderly, progress, remains
from .judging import epoch_limits, judge_epochs, judge_groups, settle, was_read
from .pieces import SEQUENCE_BITS, grouped, message_ids, split
from .tally import Tally
from .verdict import TITLES, Verdict, verdict

__all__ = ["TITLES", "Verdict", "judge", "tallied"]


def judge(history: History, conditions: Conditions) -> list[Verdict]:
    """Every invariant, in the order of :data:`TITLES`."""
    tally = tallied(history, conditions)
    again = f"{tally.delivered_again} delivered again, {conditions.duplicates_allowed} allowed"
    return [
        _lost(history, conditions, tally),
        _of(tally, "I2"),
        _of(tally, "I3"),
        _of(tally, "I4"),
        _of(tally, "I5", looks=len(history.of(Op.POSITION))),
        progress.progress(history, conditions),
        _of(tally, "I7", again),
        progress.recovery(history, conditions),
        _of(tally, "I9", _epochs(history, tally)),
        remains.replicas(conditions),
        remains.stores(conditions),
        messages.wrong_bytes(history),
        remains.footprints(conditions),
        remains.stops(conditions),
        _of(tally, "I15"),
        _of(tally, "I16", orderly.cut_short(history)),
        _of(tally, "I17"),
        _of(tally, "I18"),
        _of(tally, "I19"),
        _of(tally, "I20"),
        remains.log_lines(conditions),
        remains.leftovers(conditions),
    ]


def tallied(history: History, conditions: Conditions) -> Tally:
    """What queues and messages show, in one process."""
    pieces = ((each.kind, each.a, each.b, (0, 0), each.rows, each.data) for each in split(history.events, 1))
    total = judge_groups(grouped(pieces), history.shards, conditions, history.clients)
    settle(total, conditions)
    limits = epoch_limits(total)
    if limits:
        total.add(judge_epochs(history.events, limits, history.shards))
    return total


def _of(tally: Tally, invariant: str, note: str = "", looks: int = 0) -> Verdict:
    examples, count = tally.examples.get(invariant, []), tally.wrong[invariant]
    return verdict(invariant, tally.checked[invariant] + looks, examples, count=count, note=note)


def _lost(history: History, conditions: Conditions, tally: Tally) -> Verdict:
    """I1, with what else is known of the examples."""
    if not was_read(tally):
        return _of(tally, "I1")
    lost = np.array([stream << SEQUENCE_BITS | sequence for stream, sequence in tally.lost], np.int64)
    elsewhere, _ = messages.find(lost, message_ids(history.of(Op.READ)))
    examples = [
        f"{text}: it lies elsewhere" if moved else text
        for text, moved in zip(tally.examples.get("I1", []), elsewhere, strict=True)
    ]
    note = f"{tally.excused} messages of mode {conditions.mode} were lost at the fault, as it allows"
    return verdict("I1", tally.checked["I1"], examples, count=tally.wrong["I1"], note=note if tally.excused else "")


def _epochs(history: History, tally: Tally) -> str:
    told = []
    for shard in sorted({shard for shard, _ in tally.epochs}):
        epochs = sorted(epoch for of, epoch in tally.epochs if of == shard)
        told.append(f"{history.shards[shard]} {', '.join(map(str, epochs))}")
    return f"epochs that acknowledged: {'; '.join(told)}" if told else ""
