"""I19 and I20: what simple consumers have for a time, and what becomes of what they acknowledge."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..conditions import Conditions
from ..history import Op, Outcome
from ..pieces import Column, Rows, take
from ..tally import EXAMPLES_MAX, Tally
from ..verdict import verdict

EARLY_NS = 100_000_000
"""So much before its time a message may come again: clocks are read to the millisecond, at both ends."""
NEVER = "was never given to a simple consumer"


def popped(stream: int, rows: Rows, conditions: Conditions, tally: Tally) -> None:
    """I19 and I20 of a stretch of one stream; ``rows`` have ``at``, the sequence within the stretch."""
    op, is_ok = rows["op"], rows["outcome"] == Outcome.OK
    held = take(rows, op == Op.HOLD)
    early = _given_early(held, conditions)
    had = take(held, held["outcome"] == Outcome.OK)
    again = _given_again(had, take(rows, (op == Op.ACKNOWLEDGE) & is_ok), conditions)
    read = rows["at"][op == Op.READ]
    sent = take(rows, (op == Op.SEND) & is_ok)
    sent = take(sent, np.isin(sent["at"], read) & ~np.isin(sent["at"], had["at"]))
    never = sent["sequence"][~conditions.may_lose(sent["end_ns"])]
    tally.on_verdict(
        verdict("I19", len(had["at"]), _told(stream, early, "was given to another before its time"), count=len(early))
    )
    examples = [*_told(stream, again, "was given again after its acknowledgement"), *_told(stream, never, NEVER)]
    tally.on_verdict(verdict("I20", len(had["at"]), examples, count=len(again) + len(never)))


def _given_early(held: Rows, conditions: Conditions) -> Column:
    """The sequences that came while somebody had them.

    Who gives a message back notes it before, so from there on it may come. An answer that came when its time was over
    says nothing of who has the message now.
    """
    is_had = held["outcome"] == Outcome.OK
    held = take(held, ~is_had | (held["offset"] > held["end_ns"]))
    held = take(held, np.lexsort((held["end_ns"], held["at"])))
    is_had = held["outcome"] == Outcome.OK
    is_same = held["at"][1:] == held["at"][:-1]
    early = is_same & is_had[1:] & is_had[:-1] & (held["end_ns"][1:] < held["offset"][:-1] - EARLY_NS)
    early &= ~conditions.may_lose(held["end_ns"][:-1])
    found: Column = held["sequence"][1:][early]
    return found


def _given_again(had: Rows, acknowledged: Rows, conditions: Conditions) -> Column:
    """The sequences that a receive brought which began when their acknowledgement had its answer."""
    acknowledged = take(acknowledged, ~conditions.may_lose(acknowledged["end_ns"]))
    order = np.lexsort((acknowledged["end_ns"], acknowledged["at"]))
    which, first = np.unique(acknowledged["at"][order], return_index=True)
    ends = acknowledged["end_ns"][order][first]
    if not len(which):
        return had["sequence"][:0]
    place = np.minimum(np.searchsorted(which, had["at"]), len(which) - 1)
    found: Column = had["sequence"][(which[place] == had["at"]) & (had["start_ns"] > ends[place])]
    return found


def _told(stream: int, sequences: Column, what: str) -> Iterable[str]:
    return [f"message {stream}.{sequence} {what}" for sequence in sequences[:EXAMPLES_MAX].tolist()]
