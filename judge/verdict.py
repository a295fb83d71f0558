"""The verdict on one invariant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

EXAMPLES_MAX: Final = 5

TITLES: Final[dict[str, str]] = {
    "I1": "acknowledged is never lost",
    "I2": "nothing is read that was not sent",
    "I3": "one message per queue and offset",
    "I4": "order, also of each key in its queue",
    "I5": "offsets without gaps, never going back",
    "I6": "everything goes on after the heal",
    "I7": "duplicates",
    "I8": "a shard takes messages again in time",
    "I9": "one writer: epochs never go back",
    "I10": "replicas are the same bytes",
    "I11": "derived files agree with the log",
    "I12": "no wrong byte is delivered",
    "I13": "memory, files and threads come back",
    "I14": "clean stops",
    "I15": "what is given back comes again or is a dead letter, once",
    "I16": "an orderly queue is worked on by one at a time",
    "I17": "transactions: committed is shown once, the rest never",
    "I18": "messages for later come once, not before their time",
    "I19": "what a simple consumer has is given to nobody else before its time",
    "I20": "simple consumers are given everything, and nothing again that is acknowledged",
    "LOG": "no unexpected ERROR line",
    "END": "nothing is left behind",
}
"""Id → what has to hold."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``holds`` is None if nothing could be judged; ``note`` says why. ``examples`` are the first of ``violations``."""

    invariant: str
    holds: bool | None
    checked: int
    violations: int = 0
    examples: Sequence[str] = field(default_factory=tuple)
    note: str = ""

    @property
    def title(self) -> str:
        """What has to hold."""
        return TITLES[self.invariant]

    def as_document(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "title": self.title, "examples": list(self.examples)}


def verdict(
    invariant: str, checked: int, problems: Iterable[str], *, count: int | None = None, note: str = ""
) -> Verdict:
    """Holds when there is no problem. ``count`` is their number where ``problems`` is only the first few."""
    found = list(problems)
    number = len(found) if count is None else count
    return Verdict(invariant, number == 0, checked, number, tuple(found[:EXAMPLES_MAX]), note)


def not_judged(invariant: str, why: str) -> Verdict:
    """Nothing can be said."""
    return Verdict(invariant, None, 0, note=why)
