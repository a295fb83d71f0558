"""Messages that come to their topic later on, and name light queues: refused at once, or delivered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later.later import Later
from penstock.broker.features.levels.levels import DelayLevels
from penstock.broker.store.queues.light_kernels import allows_lights
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, Forbidden
from penstock.proto.wire.transactions_pb2 import COMMIT, OPEN, ROLLBACK
from tests.support.broker.kit import in_loop
from tests.support.broker.stores import batch, bodies
from tests.support.broker.timing import START, later_properties
from tests.support.broker.transacting import Node, opened

ORDERS = Topic("orders", 4, 4)
NAMED = "INNER_MULTI_DISPATCH"


def lit(**sizes: Any) -> Node:
    return opened(sizes={"lmq_enable": True, "multi_dispatch": True, **sizes})


def later(name: str) -> memoryview:
    properties = later_properties("orders", 0, START + 1000) + encode_properties({NAMED: name})
    return memoryview(batch(names.TIMER_TOPIC, [b"later"], properties=[properties]))


def of_level(name: str) -> memoryview:
    own = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0", NAMED: name}
    return memoryview(batch(names.SCHEDULE_TOPIC, [b"of level"], 0, properties=[encode_properties(own)]))


@in_loop
async def test_what_names_no_light_queue_is_refused_before_anybody_waits_for_it() -> None:
    node = lit()
    with pytest.raises(CorruptBatch, match=r"record 0 .*INNER_MULTI_DISPATCH names 'bad'"):
        node[Later].check(later("bad"), ORDERS)
    with pytest.raises(CorruptBatch, match="INNER_MULTI_DISPATCH names 'bad'"):
        node[DelayLevels].check(of_level("bad"), ORDERS)
    with pytest.raises(CorruptBatch, match="INNER_MULTI_DISPATCH names 'bad'"):
        await node.halves([b"half"], properties={NAMED: "bad"})


@in_loop
async def test_what_names_one_light_queue_too_many_is_refused_and_what_was_taken_comes_into_it() -> None:
    node = lit(light_queues_max=1)
    await node.halves([b"half"], properties={NAMED: "%LMQ%a"})
    with pytest.raises(Forbidden, match="maxLmqConsumeQueueNum=1"):
        node[Later].check(later("%LMQ%b"), ORDERS)
    node.store.lights._queues_max = 0  # as if others had come first
    assert await node.end(COMMIT, (0, 1)) == [(OPEN, 1)]
    assert bodies(node.store, "%LMQ%a", 0) == [b"half"]


@in_loop
async def test_no_light_queue_shows_what_is_not_committed() -> None:
    node = lit(light_queues_max=1)
    await node.halves([b"a", b"b", b"c"], properties={NAMED: "%LMQ%a"})
    assert bodies(node.store, "%LMQ%a", 0) == []
    await node.end(COMMIT, (2, 1))
    await node.end(ROLLBACK, (0, 1))
    assert bodies(node.store, "%LMQ%a", 0) == [b"c"]
    assert not allows_lights(np.frombuffer(names.PARKED_TOPIC.encode(), np.uint8))


@in_loop
async def test_a_committed_half_that_nobody_can_post_costs_itself_alone() -> None:
    node = opened()  # without light queues, whatever properties say
    await node.halves([b"a"])
    await node.halves([b"b"], properties={NAMED: "bad"})
    await node.halves([b"c"])
    node.store.lights._queues_max = 10  # as after a start with enableLmq
    assert await node.end(COMMIT, (0, 3)) == [(OPEN, 3)]
    assert node.bodies() == [b"a", b"c"]
