"""Delay levels: messages that are delivered some fixed times later, as RocketMQ's brokers keep them.

A message with the property DELAY, a level from 1 on, lies in the topic ``SCHEDULE_TOPIC_XXXX``, queue level - 1. Its
queue entry holds the time of delivery in place of the tags code. The broker's ``messageDelayLevel`` says how long each
level is; nothing in the store does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@cache
def levels_ms(text: str = DEFAULT_LEVELS) -> tuple[int, ...]:
    """Milliseconds of each delay level of ``1s 5s 1m 2h``; the first level is 1, at index 0.

    Raises:
        ValueError: a word is not a number with a unit, or there is none; the error is the word.
    """
    levels = []
    for word in text.split() or [""]:
        if not (word.isascii() and word[:-1].isdecimal() and word[-1] in _UNITS_MS and len(word) <= 10):
            raise ValueError(word)
        levels.append(int(word[:-1]) * _UNITS_MS[word[-1]])
    return tuple(levels)


def delivery_times(queue_ids: Any, stored_ms: Any) -> Any:
    """Arrays: what entries of the schedule topic hold in place of the tags code, by the default levels."""
    levels = np.array(levels_ms(), np.int64)
    return stored_ms + levels[np.clip(queue_ids, 0, len(levels) - 1)]
