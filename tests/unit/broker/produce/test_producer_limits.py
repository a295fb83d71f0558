"""Whose producer ids may be used, and what the duplicate table remembers at most."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from penstock.broker.core.intake import RESERVED_PRODUCERS
from penstock.broker.core.tables import producers
from penstock.broker.core.tables.producers import IDLE_MS_MAX, SENT_AGAIN_MS_MAX, ProducerTable, Receipt
from penstock.broker.features.later.timers import PRODUCER_ID
from penstock.broker.features.retry.retry import Retry
from penstock.broker.limits import Limits
from penstock.proto import names
from penstock.proto.errors import Forbidden, LaneForgotten, LimitReached
from penstock.proto.wire.retry_pb2 import SendBackReply, SendBackRequest
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import batch
from tests.support.broker.timing import Node

FORGED = (1 << 62) - 1
P = 0xABCDEF
LEAST = 1000
FEW = Limits(lanes_max=LEAST)
"""The least that a configuration may say."""


def receipt(sequence: int, time_ms: int = 1000, queues: int = 1) -> Receipt:
    return Receipt(sequence, 0, 100, time_ms, list(range(queues)), [7] * queues)


def crowd(table: ProducerTable, time_ms: int = 1000) -> None:
    """Others use as many lanes as there may be."""
    for lane in range(LEAST):
        table.remember(1, 0, "orders", lane, receipt(1, time_ms))


@in_loop
async def test_an_append_may_not_use_the_brokers_own_producer_ids() -> None:
    parts = Kit()
    parts.add_topic()
    assert PRODUCER_ID in RESERVED_PRODUCERS
    for producer_id in (RESERVED_PRODUCERS[0], RESERVED_PRODUCERS[-1]):
        with pytest.raises(Forbidden, match="kept for the broker's own deliveries"):
            await parts.append(producer=(producer_id, 0, 0, FORGED))
    assert parts.bodies() == []


@in_loop
async def test_a_forged_mark_that_is_in_the_log_already_does_not_stop_deliveries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "store")
    node.store.append("orders", batch("orders", [b"forged"], mark=(PRODUCER_ID, 0, 0, FORGED)), queues=4)
    node.dispatch()
    assert node.tables.producers.last_sequence(PRODUCER_ID, "orders", 0) == FORGED
    node.later([b"due"], [1])
    with caplog.at_level(logging.ERROR):
        await node.turn(2)
    assert node.delivered() == [b"forged", b"due"]
    assert "foreign producer mark passed over" in caplog.text
    assert node.metrics()["penstock_timer_foreign_marks_total", ""] == 1


@in_loop
async def test_a_batch_that_is_sent_again_in_a_forgotten_lane_is_an_error_by_name_and_a_fresh_one_is_stored() -> None:
    parts = Kit(maxProducerLanes=LEAST)
    parts.add_topic()
    await parts.append(producer=(P, 0, 0, 5))
    assert (await parts.append(producer=(P, 0, 0, 5), again=True)).duplicate
    crowd(parts.tables.producers, parts.clock.wall_ms())
    with pytest.raises(LaneForgotten, match="maxProducerLanes=1000"):
        await parts.append(producer=(P, 0, 0, 5), again=True)
    assert parts.bodies() == [b"one"]
    await parts.append([b"two"], producer=(P, 0, 0, 6))
    assert parts.bodies() == [b"one", b"two"], "never sent before, so nothing can be doubled"
    assert parts.metrics()["penstock_producer_lanes_evicted_total", ""] >= 1


@in_loop
async def test_a_send_back_that_is_made_again_when_its_lane_was_forgotten_is_an_error_by_name_and_stores_nothing() -> (
    None
):
    parts = Kit(maxProducerLanes=LEAST)
    parts.add_topic()
    await parts.append([b"one", b"two"])
    parts.dispatch()
    dead = SendBackRequest(group="g", topic="orders", offsets=[0], delay_levels=[-1], producer_id=P, sequence=1)
    later = SendBackRequest(group="g", topic="orders", offsets=[1], producer_id=P, sequence=2)
    await parts[Retry].send_back(dead)
    crowd(parts.tables.producers, parts.clock.wall_ms())
    dead.again = True
    with pytest.raises(LaneForgotten, match="maxProducerLanes=1000"):
        await parts[Retry].send_back(dead)
    for _ in range(2):
        assert await parts[Retry].send_back(later) == SendBackReply(later=1), "its dead letters' lane need not be known"
        later.again = True
    parts.dispatch()
    assert parts.bodies("%DLQ%g", 1) == [b"one"]
    assert len(parts.bodies(names.TIMER_TOPIC, 1)) == 1


def test_what_was_forgotten_stays_known_through_a_snapshot_until_nobody_sends_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = ProducerTable(FEW)
    table.remember(P, 0, "orders", 0, receipt(5))
    with caplog.at_level(logging.WARNING):
        crowd(table)
    assert "producer lanes forgotten count=1" in caplog.text
    again = ProducerTable(FEW)
    again.load(json.loads("{" + "".join(table.pieces()) + "}"), 1 << 40)
    for each in (table, again):
        with pytest.raises(LaneForgotten):
            each.find_duplicate(P, 0, "orders", 0, 5, again=True)
        each.remember(2, 0, "orders", 0, receipt(1, 1001 + SENT_AGAIN_MS_MAX))
        assert each.find_duplicate(P, 0, "orders", 0, 5, again=True) is None


def test_lanes_of_the_broker_itself_outlive_those_of_clients() -> None:
    """They say what it has delivered."""
    table = ProducerTable(FEW)
    own = min(producers.OWN_PRODUCERS)
    table.remember(own, 0, "orders", 0, receipt(5))
    crowd(table)
    assert table.evicted
    assert table.last_sequence(own, "orders", 0) == 5
    for lane in range(2 * FEW.lanes_max):
        table.remember(own, 0, "orders", lane, receipt(6))
    assert len(table) == FEW.lanes_max, "they have the same bound"
    crowd(table)
    clients = table.last_sequence(1, "orders", LEAST - 1)
    assert clients == 1, "they leave clients half of it"
    assert table.last_sequence(own, "orders", 2 * FEW.lanes_max - 1) == 6


def test_nothing_is_forgotten_while_there_is_room() -> None:
    table = ProducerTable(FEW)
    assert table.find_duplicate(P, 0, "orders", 0, 5, again=True) is None
    assert table.evicted == 0


def test_one_producer_has_lanes_for_itself_alone() -> None:
    table = ProducerTable(Limits(lanes_per_producer_max=8))
    for lane in range(8):
        table.remember(P, 0, "orders", lane, receipt(1))
    with pytest.raises(LimitReached, match="8 lanes here"):
        table.find_duplicate(P, 0, "orders", 8, 1)
    assert table.find_duplicate(P, 0, "orders", 7, 2) is None
    assert table.find_duplicate(P + 1, 0, "orders", 8, 1) is None
    table.expire(1001 + IDLE_MS_MAX)
    assert table.find_duplicate(P, 0, "orders", 8, 1) is None


def test_receipts_of_very_many_queues_are_forgotten_like_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "NUMBERS_MAX", 50_000)
    table = ProducerTable()
    for sequence in range(4):
        table.remember(P, 0, "orders", 0, receipt(sequence, queues=10_000))
    assert table.find_duplicate(P, 0, "orders", 0, 3) == receipt(3, queues=10_000)
    assert [len(row[4]) for row in table.rows()] == [1], "the newest one"
    for lane in range(1, 4):
        table.remember(P, 0, "orders", lane, receipt(1, queues=10_000))
    assert len(table) == 2
    assert table.evicted == 2


@in_loop
async def test_a_wall_clock_that_is_set_ahead_for_a_moment_empties_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append(producer=(P, 0, 0, 5))
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + 8 * 24 * 3600)
    await parts.snapshots.write_changed(lambda: parts.store.dispatched_offset)
    assert parts.tables.producers.last_sequence(P, "orders", 0) == 5


def test_what_was_forgotten_is_known_to_a_slave_whose_log_begins_behind_it() -> None:
    """It has never seen these lanes: as master it would take what is sent again for new."""
    table, slave = ProducerTable(FEW), ProducerTable(FEW)
    table.remember(P, 0, "orders", 0, receipt(5))
    assert not [document for _, document in table.repeated(0)]
    crowd(table)
    for position in (1000, 2000):
        for kind, document in list(table.repeated(position)):
            for each in (table, slave):
                each.apply(position, kind, document)
    assert slave.find_duplicate(P, 0, "orders", 0, 5) is None
    with pytest.raises(LaneForgotten):
        slave.find_duplicate(P, 0, "orders", 0, 5, again=True)
    assert list(table.repeated(2000)) == [], "it is told already"
