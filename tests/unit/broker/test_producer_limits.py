"""Whose producer ids may be used, and what the duplicate table remembers at most."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.broker.core.intake import RESERVED_PRODUCERS
from penstock.broker.features.later.timers import PRODUCER_ID
from penstock.proto.errors import Forbidden
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import batch
from tests.unit.broker.test_timers import ORDERS, Node

FORGED = (1 << 62) - 1


@in_loop
async def test_an_append_may_not_use_the_brokers_own_producer_ids() -> None:
    parts = Kit()
    parts.add_topic()
    assert PRODUCER_ID in RESERVED_PRODUCERS
    for producer_id in (RESERVED_PRODUCERS[0], RESERVED_PRODUCERS[-1]):
        with pytest.raises(Forbidden, match="kept for the broker's own deliveries"):
            await parts.append(producer=(producer_id, 0, 0, FORGED))
    assert parts.bodies() == []


def test_a_forged_mark_that_is_in_the_log_already_does_not_stop_deliveries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        node = Node(tmp_path / "store")
        node.put_topic(ORDERS)
        node.store.append("orders", batch("orders", [b"forged"], mark=(PRODUCER_ID, 0, 0, FORGED)), queues=4)
        node.dispatch()
        assert node.tables.producers.last_sequence(PRODUCER_ID, "orders", 0) == FORGED
        node.later([b"due"], [1])
        with caplog.at_level(logging.ERROR):
            await node.turn(2)
        assert node.delivered() == [b"forged", b"due"]
        assert "foreign producer mark passed over" in caplog.text
        assert node.metrics()["penstock_timer_foreign_marks_total", ""] == 1

    run()
