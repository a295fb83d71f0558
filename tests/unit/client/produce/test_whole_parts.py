"""Messages that are sent as one: with whom they go, when, and what is told of them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.client.cluster.queues import WriteQueues
from penstock.client.message import SendStatus
from penstock.client.produce.config import ProducerConfig
from penstock.client.produce.drafts import PartMaker
from penstock.client.produce.health import BrokerHealth
from penstock.client.produce.lanes import Lanes
from penstock.client.produce.parts import LANES, Batch, Kind, Part
from penstock.client.produce.receipts import RunReceipt, runs_of
from penstock.formats.columns import Column
from penstock.proto.errors import MessageTooLarge
from penstock.proto.wire.broker_pb2 import AppendReceipt

NOW = 1000.0
NONE = Column.repeated(b"", 2)


def part(*bodies: bytes, is_whole: bool = True, cost: int = 200, hash_of: int | None = None) -> Part:
    hashes = None if hash_of is None else np.full(len(bodies), hash_of, np.int32)
    return Part(Kind.SEND, list(bodies), None, cost=cost, deadline=NOW + 30, hashes=hashes, is_whole=is_whole)


def topic(queues: int = 8) -> Lanes:
    return Lanes("orders", ProducerConfig(), BrokerHealth(), WriteQueues([("a", queues)]))


def start(lanes: Lanes) -> list[list[bytes]]:
    return [bodies(batch) for batch in begun(lanes)]


def begun(lanes: Lanes) -> list[Batch]:
    return lanes.start(NOW, LANES, lambda name: True)


def bodies(batch: Batch) -> list[bytes]:
    return [body for each in batch.parts for body in each.bodies]


def test_behind_two_small_batches_they_share_the_next_until_it_is_half_full() -> None:
    lanes = topic()
    batches = []
    for name in (b"1", b"2"):
        lanes.add([part(name)])
        batches += begun(lanes)
    assert len(batches) == 2
    for name in (b"3", b"4", b"5"):
        lanes.add([part(name, name)])
        assert start(lanes) == []
    lanes.acknowledged(batches[0])
    (shared,) = begun(lanes)
    assert bodies(shared) == [b"3", b"3", b"4", b"4", b"5", b"5"]
    lanes.add([part(b"6")])
    assert start(lanes) == []
    lanes.add([part(b"7", cost=lanes.half_full)])
    assert start(lanes) == [[b"6", b"7"]]


def test_they_do_not_share_a_batch_with_others() -> None:
    lanes = topic(queues=1)
    lanes.add([part(b"first")])
    under_way = begun(lanes)
    lanes.add([part(b"whole"), part(b"other", is_whole=False), part(b"keyed", is_whole=False, hash_of=3)])
    assert start(lanes) == []
    sent = []
    while under_way:
        lanes.acknowledged(under_way.pop())
        under_way += begun(lanes)
        sent += [sorted(bodies(batch)) for batch in under_way]
    assert [b"whole"] in sent
    assert sorted(body for each in sent for body in each) == [b"keyed", b"other", b"whole"]


def test_of_several_each_is_tried_alone_when_one_is_refused_and_none_is_parted() -> None:
    lanes = topic(queues=1)
    lanes.add([part(b"first")])
    (first,) = begun(lanes)
    lanes.add([part(b"1", b"2"), part(b"3", b"4")])
    lanes.acknowledged(first)
    (both,) = begun(lanes)
    assert lanes.on_error(both, MessageTooLarge("2 is too large"), NOW) == []
    (alone,) = begun(lanes)
    assert bodies(alone) == [b"1", b"2"]
    (failure,) = lanes.on_error(alone, MessageTooLarge("2 is too large"), NOW)
    assert [list(each.bodies) for each in failure.parts] == [[b"1", b"2"]]
    assert start(lanes) == [[b"3", b"4"]]


@pytest.mark.parametrize("status", list(SendStatus))
def test_each_learns_where_its_first_message_lies(status: SendStatus) -> None:
    lanes = topic()
    lanes.add([part(b"1", b"2"), part(b"3"), part(b"4")])
    (batch,) = begun(lanes)
    receipt = AppendReceipt(queue_ids=[5], queue_offsets=[70], status=status.value)
    assert runs_of(batch, receipt) == [RunReceipt(5, offset, status) for offset in (70, 72, 73)]


def test_what_is_no_batch_or_would_be_changed_is_sent_otherwise() -> None:
    large = Column.of([b"x" * 100, b"y" * 200])
    assert PartMaker(ProducerConfig()).whole(large, NONE, NOW) is not None
    assert PartMaker(ProducerConfig(batch_bytes_max=1024)).whole(Column.of([b"x" * 900, b"y"]), NONE, NOW) is None
    assert PartMaker(ProducerConfig(batch_count_max=1)).whole(large, NONE, NOW) is None
    packing = PartMaker(ProducerConfig(compression="zlib", compress_bytes_min=100))
    one = Column.repeated(b"", 1)
    assert packing.whole(Column.of([b"x" * 99]), one, NOW) is not None
    assert packing.whole(Column.of([b"x" * 100]), one, NOW) is None
    assert packing.whole(large, NONE, NOW) is not None  # several are not packed, as in RocketMQ
