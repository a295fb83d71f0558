"""I16: a queue of an orderly group is worked on by one member at a time, one message at a time."""

from __future__ import annotations

import numpy as np

from ..conditions import Conditions
from ..history import Events, History, Op, Outcome
from ..verdict import EXAMPLES_MAX, Verdict, verdict


def one_at_a_time(history: History, conditions: Conditions) -> Verdict:
    """I16; no condition excuses anything.

    Work is noted when it begins and when it has ended. Of work that was cut short only the beginning is known.
    """
    ended, cut = _work(history)
    pieces = np.concatenate([ended, cut])
    queues = pieces["shard"].astype(np.int64) << 16 | pieces["queue"].astype(np.int64)
    order = np.lexsort((pieces["start_ns"], queues))
    pieces, queues = pieces[order], queues[order]
    wrong = _overlapped(pieces, queues)
    examples = [f"{_told(history, pieces[at])} while {_told(history, pieces[by])}" for at, by in wrong[:EXAMPLES_MAX]]
    return verdict("I16", len(pieces), examples, count=len(wrong))


def cut_short(history: History) -> str:
    """How much work was cut short, for people; empty without any."""
    count = len(_work(history)[1])
    return f"{count} were cut short" if count else ""


def _work(history: History) -> tuple[Events, Events]:
    """The pieces of work that have ended, and those of which only the beginning is known."""
    work = history.of(Op.WORK)
    ended, begun = work[work["outcome"] == Outcome.OK], work[work["outcome"] == Outcome.UNKNOWN]
    known = set(_pieces(ended))
    has_ended = np.array([each in known for each in _pieces(begun)], np.bool_)
    return ended, begun[~has_ended]


def _pieces(work: Events) -> list[tuple[int, ...]]:
    """What tells two pieces of work apart: who, where, and when they began."""
    columns = (work[name].tolist() for name in ("client", "shard", "queue", "offset", "start_ns"))
    return list(zip(*columns, strict=True))


def _overlapped(pieces: Events, queues: Events) -> list[tuple[int, int]]:
    """The pieces that began before the last end of earlier ones of their queue, and the one that ended then."""
    wrong = []
    queue, last = -1, 0
    for at, (each, start, end) in enumerate(
        zip(queues.tolist(), pieces["start_ns"].tolist(), pieces["end_ns"].tolist(), strict=True)
    ):
        if each != queue:
            queue, last = each, at
            continue
        if start < int(pieces["end_ns"][last]):
            wrong.append((at, last))
        if end >= int(pieces["end_ns"][last]):
            last = at
    return wrong


def _told(history: History, piece: np.void) -> str:
    who = history.clients.get(int(piece["client"]), f"client {piece['client']}")
    return f"{who} was at {history.place_name(piece)}"
