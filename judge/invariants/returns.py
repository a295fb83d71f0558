"""I15: what a consumer gave back comes again or is a dead letter, once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..conditions import Conditions
from ..history import Events, History, Op, Outcome
from ..pieces import Column, message_ids
from ..verdict import EXAMPLES_MAX, Verdict, verdict
from .messages import find, name_of, once, places


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
    examples += [f"{name_of(one)} came back in {place} to nobody" for one, place in _named(never, history)]
    return verdict("I15", len(known), examples, count=len(lost) + len(doubled) + len(never))


def _counts(ids: Column, events: Events) -> Column:
    """How many rows each of these messages has."""
    counted: Column = np.bincount(np.searchsorted(ids, message_ids(events)), minlength=len(ids))
    return counted


def _named(events: Events, history: History) -> Iterator[tuple[int, str]]:
    for event, one in zip(events[:EXAMPLES_MAX], message_ids(events)[:EXAMPLES_MAX].tolist(), strict=True):
        yield one, history.place_name(event)
