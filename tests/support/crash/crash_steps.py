"""The steps of a random history of :mod:`.crash_model`, each a name and a seed of its own.

So a part of the steps is a history too, by which failures are made readable.
"""

from __future__ import annotations

import random
from typing import NamedTuple

WEIGHTS = {
    "append": 22,
    "marked": 12,
    "roll": 3,
    "sync": 12,
    "dispatch": 12,
    "checkpoint": 7,
    "write_back": 6,
    "background": 3,
    "cut": 4,
    "kill": 2,
    "fail_sync": 2,
    "close": 2,
    "lose_derived": 1,
    "truncate": 2,
    "clean": 2,
    "delete_topic": 2,
}
REPLICA_WEIGHTS = {"ship": 20, "promote": 1}
POOL_WEIGHTS = {"commit": 20, "kill": 4}


class Step(NamedTuple):
    """What happens, and the seed of its details."""

    name: str
    seed: int


def steps_of(seed: int, count: int) -> list[Step]:
    """The history with that seed."""
    chooser = random.Random(seed)
    weights = WEIGHTS | (REPLICA_WEIGHTS if is_replica(seed) else {}) | (POOL_WEIGHTS if is_pooled(seed) else {})
    names = chooser.choices(list(weights), list(weights.values()), k=count)
    return [Step(name, chooser.getrandbits(48)) for name in names]


def is_replica(seed: int) -> bool:
    """Whether that history is about a store that gets a master's bytes."""
    return seed % 4 == 3


def is_pooled(seed: int) -> bool:
    """Whether that history's appends go to a transient store pool."""
    return seed % 5 == 2
