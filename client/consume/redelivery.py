"""What becomes of a message that its listener could not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .push_queue import Item


@dataclass(frozen=True, slots=True)
class Again:
    """Call the listener with it again here, ``after_s`` from now; the commit of its queue waits for it until then."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """This consumer is done with it, because somebody else keeps it: the commit may pass it."""


class Redelivery(Protocol):
    """Decides on each failure, in the thread of the listener and without any lock: it may ask a broker."""

    def on_failure(self, item: Item, attempts: int) -> Again | Done:
        """What to do with ``item``, which has failed ``attempts`` times here by now."""
        ...


class Local:
    """Every message stays here: tried again after each of ``delays_ms`` in turn, the last of which repeats."""

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = delays_ms

    def on_failure(self, item: Item, attempts: int) -> Again:
        return Again(self._delays_ms[min(attempts, len(self._delays_ms)) - 1] / 1000)
