"""Messages that are sent as one: with whom they go, when, and what is told of them."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import numpy as np

from penstock.client.cluster.queues import WriteQueues
from penstock.client.message import SendReceipt, SendStatus
from penstock.client.produce.config import ProducerConfig
from penstock.client.produce.drafts import PartMaker
from penstock.client.produce.health import BrokerHealth
from penstock.client.produce.lanes import Lanes
from penstock.client.produce.parts import LANES, Batch, Kind, Line, Part
from penstock.client.produce.receipts import RunReceipt, receipts_of
from penstock.formats.columns import Column
from penstock.formats.destination import Ordinary
from penstock.formats.record.layout import Host
from penstock.proto.errors import MessageTooLarge
from penstock.proto.wire.broker_pb2 import AppendReceipt
from tests.support.client.lanes import NOW, bodies

NONE = Column.repeated(b"", 2)
HOST = Host(bytes(4), 9)


def part(*bodies: bytes, is_whole: bool = True, cost: int = 200, hash_of: int | None = None) -> Part:
    hashes = None if hash_of is None else np.full(len(bodies), hash_of, np.int32)
    made = Part(Kind.SEND, list(bodies), None, cost=cost, deadline=NOW + 30, hashes=hashes, is_whole=is_whole)
    made.futures = [Future() for _ in bodies[: 1 if is_whole else None]]
    return made


def topic(queues: int = 8, **settings: Any) -> Lanes:
    return Lanes("orders", ProducerConfig(**settings), BrokerHealth(), WriteQueues([("a", queues)]))


def start(lanes: Lanes) -> list[list[bytes]]:
    return [bodies(batch) for batch in begun(lanes)]


def begun(lanes: Lanes) -> list[Batch]:
    return lanes.start(NOW, LANES, lambda name: True)


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


def test_they_share_a_batch_with_others_and_each_learns_its_own_places() -> None:
    lanes = topic(queues=1)
    lanes.add([part(b"first")])
    (first,) = begun(lanes)
    one = part(b"one", is_whole=False)
    one.message_ids = ["id"]
    lanes.add([part(b"1", b"2"), one, part(b"3", b"4")])
    lanes.acknowledged(first)
    (mixed,) = begun(lanes)
    assert bodies(mixed) == [b"1", b"2", b"one", b"3", b"4"]
    mixed.record_sizes = np.full(5, 100)
    receipt = AppendReceipt(queue_ids=[0], queue_offsets=[70], physical_offset=1000, status="SEND_OK")
    whole, single, last = receipts_of(Ordinary("orders"), mixed, receipt, HOST)
    assert (whole, last) == (RunReceipt(0, 70, SendStatus.SEND_OK), RunReceipt(0, 73, SendStatus.SEND_OK))
    assert isinstance(single, SendReceipt)
    assert (single.message_id, single.queue_offset) == ("id", 72)
    assert single.offset_message_id.endswith(f"{1200:016X}")


def test_behind_a_message_that_waits_they_are_no_part_of_it_though_of_its_batch() -> None:
    lanes = topic(queues=1)
    lanes.add([part(b"first")])
    (first,) = begun(lanes)
    one, whole = part(b"one", is_whole=False), part(b"1", b"2")
    one.properties, whole.properties = [None], [None, None]
    assert [lanes.join(each) for each in (one, whole)] == [None, None]
    lanes.acknowledged(first)
    (mixed,) = begun(lanes)
    assert [list(each.bodies) for each in mixed.parts] == [[b"one"], [b"1", b"2"]]


def test_with_keyed_ones_they_lie_in_a_queue_of_their_own() -> None:
    lanes = topic(queues=16)
    lanes.add([part(b"first", hash_of=0, is_whole=False)])
    (first,) = begun(lanes)
    lanes.add([part(b"k1", hash_of=0, is_whole=False), part(b"k2", hash_of=8, is_whole=False)])
    assert start(lanes) == []
    fillers = [part(b"f") for _ in range(LANES)]
    lanes.add(fillers)
    under_way = begun(lanes)
    lanes.add([part(b"1", b"2")])
    lanes.acknowledged(first)
    (mixed,) = (batch for batch in begun(lanes) if batch not in under_way)
    for each in mixed.parts:
        each.message_ids = [] if each.is_whole else ["id"] * each.count
    queue_ids = sorted({int(queue_id) for queue_id in mixed.queue_ids})
    receipt = AppendReceipt(queue_ids=queue_ids, queue_offsets=[10 * queue_id for queue_id in queue_ids])
    mixed.record_sizes = np.full(mixed.count, 100)
    before = mixed.queue_ids.tolist()[: bodies(mixed).index(b"1")]
    own = int(mixed.queue_ids[bodies(mixed).index(b"1")])
    run = next(each for each in receipts_of(Ordinary("orders"), mixed, receipt, HOST) if isinstance(each, RunReceipt))
    assert (run.queue_id, run.queue_offset) == (own, 10 * own + before.count(own))


def test_when_one_is_refused_half_of_them_are_tried_together_and_none_is_parted() -> None:
    lanes = topic(queues=1)
    lanes.add([part(b"first")])
    (first,) = begun(lanes)
    lanes.add([part(b"%d" % number, b"-") for number in range(64)])
    lanes.acknowledged(first)
    under_way, tries, stored, failed = begun(lanes), 0, [], []
    while under_way:
        batch = under_way.pop()
        tries += 1
        if b"17" in bodies(batch):
            for failure in lanes.on_error(batch, MessageTooLarge("17 is too large"), NOW):
                failed += [list(each.bodies) for each in failure.parts]
        else:
            stored += bodies(batch)
            lanes.acknowledged(batch)
        under_way += begun(lanes)
    assert failed == [[b"17", b"-"]]
    assert sorted(stored) == sorted([b"%d" % number for number in range(64) if number != 17] + [b"-"] * 63)
    assert tries <= 14


def test_a_line_knows_what_its_parts_are_together() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, line, absorbed = random.Random(seed), Line(), 0
    for _ in range(2000):
        step = chance.randrange(6)
        made = part(b"x" * chance.randrange(9), is_whole=chance.random() < 0.5, cost=chance.randrange(99))
        made.attempts, made.properties = chance.choice([0, 0, 1]), [None] * made.count
        if step == 0:
            line.append(made)
        elif step == 1:
            line.appendleft(made)
        elif step == 2 and line:
            line.popleft()
        elif step == 3 and line and line[-1].may_take(made, 1 << 20, 1 << 20):
            line.absorb(made)
            absorbed += 1
        elif step == 4:
            line.extend([made, part(b"1", is_whole=False)])
            line[-1].properties = [None]
        elif chance.random() < 0.1:
            line.clear()
        assert line.cost == sum(each.cost for each in line)
        assert line.messages == sum(each.count for each in line)
        assert line.unshared == sum(not each.may_share for each in line)
        assert line.partable == sum(not each.is_whole for each in line)
    assert absorbed


def test_a_batch_of_as_many_messages_as_it_may_have_waits_for_no_more() -> None:
    lanes = topic(batch_count_max=4)
    sent = []
    for number in range(2):
        lanes.add([part(b"%d" % number)])
        sent += begun(lanes)
    lanes.add([part(b"1", b"2")])
    assert start(lanes) == []
    lanes.add([part(b"3", b"4")])
    assert start(lanes) == [[b"1", b"2", b"3", b"4"]]


def test_several_that_are_sent_together_and_may_be_parted_wait_for_no_others() -> None:
    lanes = topic()
    for number in range(2):
        lanes.add([part(b"%d" % number)])
        begun(lanes)
    lanes.add([part(b"1", b"2", is_whole=False)])
    assert start(lanes) == []
    lanes.add([part(b"3", b"4", is_whole=False)])
    assert start(lanes) == [[b"1", b"2", b"3", b"4"]]


def test_what_is_no_batch_or_would_be_changed_is_sent_otherwise() -> None:
    large = Column.of([b"x" * 100, b"y" * 200])
    assert PartMaker(ProducerConfig()).whole(large, NONE, NOW) is not None
    assert PartMaker(ProducerConfig(batch_bytes_max=1024)).whole(Column.of([b"x" * 900, b"y"]), NONE, NOW) is None
    assert PartMaker(ProducerConfig(batch_count_max=1)).whole(large, NONE, NOW) is None
    packing = PartMaker(ProducerConfig(compression="zlib", compress_bytes_min=100))
    one = Column.repeated(b"", 1)
    alone = packing.whole(Column.of([b"x" * 99]), one, NOW)
    assert alone is not None
    assert not alone.is_whole  # others may join it
    assert packing.whole(Column.of([b"x" * 100]), one, NOW) is None
    assert packing.whole(large, NONE, NOW) is not None  # several are not packed, as in RocketMQ
