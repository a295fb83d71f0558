"""How long a query waits for brokers that are away, and that it says so meanwhile.

A stream waits without end, unless an option says how long: a service that ends whenever a shard restarts slowly has to
be started again by somebody, and nothing is gained. A batch read, or write, fails after a minute: somebody waits for
it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.client.cluster import again
from penstock.proto.errors import PenstockError

log = logging.getLogger(__name__)

T = TypeVar("T")

WITHOUT_END: Final = float("inf")
BATCH_S: Final = 60.0
TURN_S: Final = 10.0
"""Between two warnings, and of one look at who is there: others may have come to serve instead."""


def waiting_s(given_ms: int | None, *, streaming: bool) -> float:
    """How long something is tried: as an option says, else without end in a stream, and a minute in a batch."""
    if given_ms is not None:
        return given_ms / 1000
    return WITHOUT_END if streaming else BATCH_S


class Reminder:
    """Says every :data:`TURN_S` for whom ``who`` waits; for one thread."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._began = self._told = time.monotonic()

    def restart(self) -> None:
        """Nobody is waited for any more."""
        self._began = self._told = time.monotonic()

    def tell(self, reason: object) -> None:
        """Log ``reason``, if it is time for that."""
        now = time.monotonic()
        if now - self._told >= TURN_S:
            self._told = now
            log.warning("%s waits since %.0f s: %s", self._who, now - self._began, reason)


def patiently(call: Callable[[float], T], timeout_s: float, who: str) -> T:
    """The result of ``call(seconds)``, made again in turns for ``timeout_s``; each turn that fails is told.

    Raises PenstockError: one that no repetition heals, or the last one.
    """
    deadline = time.monotonic() + timeout_s
    reminder = Reminder(who)
    while True:
        turn_s = min(TURN_S, max(deadline - time.monotonic(), 0.0))
        try:
            return again(lambda turn_s=turn_s: call(turn_s), turn_s)  # type: ignore[misc]
        except PenstockError as error:
            if not error.retryable or time.monotonic() + 0.05 >= deadline:
                raise
            reminder.tell(error)
