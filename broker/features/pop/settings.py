"""What ``broker.conf`` says of POP."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.conf import Section, key


@dataclass(frozen=True, slots=True, kw_only=True)
class PopSettings(Section):
    """How much may be in flight."""

    queue_in_flight_max: int = key(
        "popInflightMessageThreshold",
        default=10_000,
        within=(1, 50_000),
        doc="messages of one queue that a group was given and has not acknowledged; it is given no more then",
        differs="a receive that finds all queues full is refused, not answered empty",
    )
    in_flight_max: int = key(
        "popInflightMessageMax",
        default=1_000_000,
        within=(1, 20_000_000),
        doc="the same of all groups and queues, 40 to 60 bytes of memory each; receives are refused then",
        differs="has no such key",
    )
