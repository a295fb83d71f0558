"""I15, I17 and I18: what becomes of messages that were given back, of transactions, and of messages for later."""

from __future__ import annotations

import numpy as np

from ..conditions import Conditions
from ..history import Events, History, Op, Outcome
from ..pieces import Column, message_ids
from ..verdict import EXAMPLES_MAX, Verdict, verdict
from .messages import find, name_of, once, places

TRANSACTIONS, LATER = 7 << 20, (7 << 20) + 1
"""The streams of a drill's transactions, and of its messages for later."""


def returns(history: History, conditions: Conditions) -> Verdict:
    """I15.

    Of each message there are as many copies as it was surely given back times, or more where it is not known how often
    that was; and each copy in the retry topic has come to a member. A mode that may lose messages at a fault may lose
    copies.
    """
    given = history.of(Op.GIVE_BACK)
    known, tried = given[given["outcome"] == Outcome.OK], given[given["outcome"] == Outcome.UNKNOWN]
    copies = np.concatenate([once(history.of(Op.RETURNED)), once(history.of(Op.DEAD))])
    is_excused = conditions.may_lose(known["end_ns"])
    ids = np.unique(np.concatenate([message_ids(each) for each in (known, tried, copies)]))
    least, most, found = (_counts(ids, each) for each in (known[~is_excused], tried, copies))
    came, _ = find(places(history.of(Op.RETURNED)), places(history.of(Op.CAME_AGAIN)))
    never = once(history.of(Op.RETURNED)[~came])
    examples: list[str] = []
    lost, doubled = np.flatnonzero(found < least), np.flatnonzero(found > most)
    for index in lost[:EXAMPLES_MAX].tolist():
        examples.append(f"{name_of(ids[index])} was given back {least[index]} times, {found[index]} copies are there")
    for index in doubled[:EXAMPLES_MAX].tolist():
        examples.append(f"{name_of(ids[index])} was given back {most[index]} times at most, {found[index]} are there")
    for event, one in zip(never[:EXAMPLES_MAX], message_ids(never)[:EXAMPLES_MAX].tolist(), strict=True):
        examples.append(f"{name_of(one)} came back in {history.place_name(event)} to nobody")
    return verdict("I15", len(known), examples, count=len(lost) + len(doubled) + len(never))


def transactions(history: History, conditions: Conditions) -> Verdict:
    """I17: a message is shown once if its commit was confirmed, and at most once if that was tried; else never."""
    return _as_decided("I17", history, conditions, Op.DECIDE, TRANSACTIONS)


def later(history: History, conditions: Conditions) -> Verdict:
    """I18: a message for later is shown once if it was acknowledged, at most once if not, and never before its time."""
    found = _as_decided("I18", history, conditions, Op.LATER, LATER)
    sent, shown = history.of(Op.LATER), _shown(history, LATER)
    is_sent, at = find(message_ids(shown), message_ids(sent))
    early = shown[is_sent & (shown["position"] < sent["offset"][at])]
    examples = [
        *found.examples,
        *(f"{name_of(each)} was shown before its time" for each in message_ids(early).tolist()),
    ]
    return verdict("I18", found.checked, examples, count=found.violations + len(early), note=found.note)


def _as_decided(invariant: str, history: History, conditions: Conditions, op: Op, stream: int) -> Verdict:
    """Each message of the stream is there as often as the rows of ``op`` allow."""
    told, shown = history.of(op), _shown(history, stream)
    sure, perhaps = told[told["outcome"] == Outcome.OK], told[told["outcome"] != Outcome.REFUSED]
    is_excused = conditions.may_lose(sure["end_ns"])
    ids = np.unique(np.concatenate([message_ids(each) for each in (told, shown)]))
    least = np.isin(ids, message_ids(sure[~is_excused])).astype(np.int64)
    most = np.isin(ids, message_ids(perhaps)).astype(np.int64)
    found = _counts(ids, shown)
    lost, surplus = np.flatnonzero(found < least), np.flatnonzero(found > most)
    examples = [f"{name_of(int(ids[index]))} is lost" for index in lost[:EXAMPLES_MAX]]
    examples += [
        f"{name_of(int(ids[index]))} is shown {found[index]} times, {most[index]} allowed"
        for index in surplus[:EXAMPLES_MAX]
    ]
    return verdict(invariant, len(ids), examples, count=len(lost) + len(surplus))


def _shown(history: History, stream: int) -> Events:
    """What the reader found of a stream, each place once."""
    rows = history.of(Op.SHOWN)
    return once(rows[rows["stream"] == stream])


def _counts(ids: Column, events: Events) -> Column:
    """How many rows each of these messages has."""
    counted: Column = np.bincount(np.searchsorted(ids, message_ids(events)), minlength=len(ids))
    return counted
