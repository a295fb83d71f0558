"""What is judged over a whole history at once: I12, and messages that nobody received."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..history import Events, History, Op, Outcome
from ..pieces import SEQUENCE_BITS, Column, message_ids
from ..verdict import EXAMPLES_MAX, Verdict, verdict

_OFFSET_BITS, _QUEUE_BITS = 40, 14

Flags = npt.NDArray[np.bool_]


def wrong_bytes(history: History) -> Verdict:
    """I12: the body that arrived has the checksum of the body that was sent."""
    seen, sent = history.of(Op.READ, Op.RECEIVE), history.of(Op.SEND)
    found, at = find(message_ids(seen), message_ids(sent))
    wrong = np.flatnonzero(found)
    wrong = wrong[seen["crc"][wrong] != sent["crc"][at[wrong]]]
    examples = [
        f"message {seen[index]['stream']}.{seen[index]['sequence']} at {history.place_name(seen[index])}: "
        f"checksum {seen['crc'][index]:#010x}, sent with {sent['crc'][at[index]]:#010x}"
        for index in wrong[:EXAMPLES_MAX].tolist()
    ]
    return verdict("I12", len(seen), examples, count=len(wrong))


def undelivered(history: History) -> Events:
    """Acknowledged sends that no member of the group ever received, though they are there."""
    sent, received, read = history.sends(Outcome.OK), history.of(Op.RECEIVE), history.of(Op.READ)
    left = []
    for chosen, key in ((sent[sent["queue"] >= 0], places), (sent[sent["queue"] < 0], message_ids)):
        delivered, _ = find(key(chosen), key(received))
        there, _ = find(key(chosen), key(read))
        left.append(chosen[~delivered & there])
    return np.concatenate(left)


def places(events: Events) -> Column:
    """Shard (9 bits), queue id (14 bits) and offset (40 bits) as one number."""
    queues = (events["shard"].astype(np.int64) << _QUEUE_BITS) | events["queue"].astype(np.int64)
    numbers: npt.NDArray[Any] = (queues << _OFFSET_BITS) | events["offset"]
    return numbers


def once(events: Events) -> Events:
    """One row for each place: what is read twice is there once."""
    _, first = np.unique(places(events), return_index=True)
    found: Column = events[first]
    return found


def name_of(message_id: int) -> str:
    """A message, for people."""
    return f"message {message_id >> SEQUENCE_BITS}.{message_id & ((1 << SEQUENCE_BITS) - 1)}"


def find(wanted: Column, present: Column) -> tuple[Flags, Column]:
    """Which of ``wanted`` are in ``present``, and at which index (any where absent)."""
    if not len(present):
        return np.zeros(len(wanted), dtype=np.bool_), np.zeros(len(wanted), np.int64)
    order = np.argsort(present, kind="stable")
    at = np.minimum(np.searchsorted(present, wanted, sorter=order), len(present) - 1)
    indexes = order[at]
    return present[indexes] == wanted, indexes
