"""Publications of exactly-once writers that were cut short: whoever goes on with them publishes nothing twice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.proto import names
from penstock.proto.errors import DiskFull
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import bodies
from tests.support.clock import ManualClock

KEYS = {"k": {"broker-a": 1}}


async def opened(**settings: object) -> Kit:
    parts = Kit(**settings)  # type: ignore[arg-type]
    parts.add_topic()
    await parts[ExactlyOnce].writers.open_writer("w", "r1")
    return parts


@contextlib.contextmanager
def cut_short(parts: Kit) -> Iterator[None]:
    """What is published cannot be noted: the publication is cut short behind its messages."""
    left = parts.fail_appends(to=names.STATE_TOPIC)
    with pytest.raises(DiskFull):
        yield
    left[0] = 1 << 30


@in_loop
async def test_a_publication_that_was_cut_short_is_finished_once_however_many_others_append_meanwhile() -> None:
    parts = await opened(maxProducerLanes=1000)
    await parts.stage([b"a", b"b"])
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    with cut_short(parts):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    for number in range(1001):
        await parts.append(queue_id=1, producer=(1000 + number, 0, 0, 1))
    again = Kit.restarted(parts)
    await again[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    again.dispatch()
    assert bodies(again.store, "orders") == [b"a", b"b"]


@in_loop
async def test_it_is_finished_once_also_after_a_week_in_which_nobody_has_stored_anything() -> None:
    clock = ManualClock()
    parts = await opened(clock=clock)
    await parts.stage([b"a", b"b"])
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    with cut_short(parts):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    clock.advance(8 * 86400)
    parts.tables.expire(clock.wall_ms())
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    parts.dispatch()
    assert bodies(parts.store, "orders") == [b"a", b"b"]


@in_loop
async def test_it_is_finished_once_however_many_queues_the_topic_had_when_it_was_cut_short() -> None:
    parts = await opened(maxProducerLanes=1000)
    await parts.stage([b"a", b"b"], queue_id=3)
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    parts.add_topic(queues=2)
    with cut_short(parts):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    parts.add_topic(queues=4)
    for number in range(1001):
        await parts.append(queue_id=2, producer=(1000 + number, 0, 0, 1))
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    parts.dispatch()
    found = [body for queue_id in (0, 1, 3) for body in bodies(parts.store, "orders", queue_id)]
    assert found == [b"a", b"b"]
