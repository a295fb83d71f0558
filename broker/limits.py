"""How much clients may make a broker hold: what grows with what they ask has a limit here, or a constant beside it.

A limit is below what others can take: nameservers refuse a broker with more than 100,000 topics, and a registration
is one message. ``docs/reference/limits.md`` lists all of them, with their errors.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.conf import check_ranges, key

_MANY = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may make a broker hold; RocketMQ has none of these keys."""

    lanes_max: int = key(
        "maxProducerLanes",
        default=100_000,
        within=(1000, _MANY),
        doc="ordered streams of idempotent producers that are remembered; the least recently used is forgotten",
    )
    lanes_per_producer_max: int = key(
        "maxLanesPerProducer", default=20_000, within=(8, _MANY), doc="the same of one producer; more are refused"
    )

    def __post_init__(self) -> None:
        check_ranges(self)
