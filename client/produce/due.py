"""When a message is to be delivered, as its properties say it; how it comes there: :mod:`.later`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from penstock.formats.record.properties import TIMER_DELIVER_MS, TIMER_OUT_MS
from penstock.proto.errors import InvalidArgument

DeliverAt = dt.datetime | int
"""A time with a time zone, or milliseconds since 1970 UTC."""


def due_ms(deliver_at: DeliverAt) -> int:
    """The time in ms since 1970 UTC; never before it, and 0 for everything before 1970.

    Raises:
        InvalidArgument: no such time.
    """
    if isinstance(deliver_at, dt.datetime):
        if deliver_at.tzinfo is None:
            raise InvalidArgument(f"deliver_at {deliver_at}: has no time zone: give one, as datetime.UTC")
        return max(0, -(-round(deliver_at.timestamp() * 1_000_000) // 1000))
    if not isinstance(deliver_at, int) or isinstance(deliver_at, bool):
        raise InvalidArgument(f"deliver_at {deliver_at!r:.60}: must be a datetime, or milliseconds since 1970 UTC")
    return max(0, deliver_at)


def with_time(properties: Mapping[str, str] | None, deliver_at: DeliverAt | None) -> Mapping[str, str] | None:
    """The properties with what says the time, if there is one.

    Raises:
        InvalidArgument: no such time.
    """
    if deliver_at is None:
        return properties
    time = str(due_ms(deliver_at))
    return {**(properties or {}), TIMER_DELIVER_MS: time, TIMER_OUT_MS: time}
