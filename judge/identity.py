"""Numbers that stand for messages and places, so that arrays of them can be sorted and joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .history import Events

Numbers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

_SEQUENCE_BITS, _OFFSET_BITS, _QUEUE_BITS = 40, 40, 14


def message_ids(events: Events) -> Numbers:
    """Stream (23 bits) and sequence (40 bits) as one number."""
    ids: Numbers = (events["stream"].astype(np.int64) << _SEQUENCE_BITS) | events["sequence"]
    return ids


def queue_numbers(events: Events) -> Numbers:
    """Shard (9 bits) and queue id (14 bits) as one number."""
    return (events["shard"].astype(np.int64) << _QUEUE_BITS) | events["queue"].astype(np.int64)


def places(events: Events) -> Numbers:
    """Shard, queue and offset (40 bits) as one number."""
    numbers: Numbers = (queue_numbers(events) << _OFFSET_BITS) | events["offset"]
    return numbers


def find(wanted: Numbers, present: Numbers) -> tuple[Flags, Numbers]:
    """Which of ``wanted`` are in ``present``, and at which index (any where absent). ``present`` has at least one."""
    order = np.argsort(present, kind="stable")
    at = np.minimum(np.searchsorted(present, wanted, sorter=order), len(present) - 1)
    indexes = order[at]
    return present[indexes] == wanted, indexes


def contains(wanted: Numbers, present: Numbers) -> Flags:
    """Which of ``wanted`` are in ``present``."""
    if not len(present):
        return np.zeros(len(wanted), dtype=np.bool_)
    return find(wanted, present)[0]


def first_of_each(numbers: Numbers) -> Flags:
    """Marks the first occurrence of each number."""
    marks = np.zeros(len(numbers), dtype=np.bool_)
    marks[np.unique(numbers, return_index=True)[1]] = True
    return marks
