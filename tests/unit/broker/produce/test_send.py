from __future__ import annotations

import asyncio

import pytest

from penstock.broker.core.tables.producers import SEQUENCES, ProducerTable
from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.produce.produce import Produce
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    ChangedBatch,
    CorruptBatch,
    Forbidden,
    InvalidArgument,
    InvalidName,
    MessageTooLarge,
    NotEnoughReplicas,
    NotMaster,
    PenstockError,
    StaleProducer,
    SyncFailed,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2
from tests.support.broker.kit import POOL, SYNC, Kit, in_loop
from tests.support.broker.requests import batch
from tests.support.waiting import eventually

PRODUCER = (0xAB, 1, 0, 1)
PATIENT = {"syncFlushTimeout": 60_000}
"""For what waits until the test lets it go on, however busy the machine is."""


@in_loop
async def test_an_append_is_answered_with_where_its_records_are() -> None:
    parts = Kit()
    parts.add_topic()
    start = parts.store.end_offset
    first = await parts.append([b"a", b"b"], queue_id=2)
    second = await parts.append([b"c"], queue_id=2)
    assert (first.physical_offset, list(first.queue_ids), list(first.queue_offsets)) == (start, [2], [0])
    assert (list(second.queue_offsets), second.status, second.epoch) == ([2], broker_pb2.SEND_OK, 1)
    assert parts.core.counters.topic("orders").messages_in == 3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"topic": "missing"}, TopicNotFound),
        ({"topic": "bad name"}, InvalidName),
        ({"topic": ""}, InvalidName),
        ({"topic": names.STATE_TOPIC}, Forbidden),
        ({"topic": "TBW102"}, Forbidden),
        ({"topic": "readonly"}, Forbidden),
        ({"count": 0}, InvalidArgument),
        ({"count": 2}, CorruptBatch),
        ({"queue_id": 4}, Forbidden),
        ({"bodies": [b"x" * 70_000, b"x" * 70_000]}, MessageTooLarge),
        ({"producer": PRODUCER, "marked": False}, CorruptBatch),
    ],
)
@in_loop
async def test_what_may_not_be_stored_is_refused_by_name_and_nothing_is_written(
    settings: dict[str, object], error: type[PenstockError]
) -> None:
    parts = Kit()
    parts.add_topic()
    parts.add_topic("readonly", perm=names.PERM_READ)
    end = parts.store.end_offset
    with pytest.raises(error):
        await parts.append(**settings)  # type: ignore[arg-type]
    assert parts.store.end_offset == end


@in_loop
async def test_a_removed_queue_takes_nothing_more_and_batches_from_before_keep_their_receipts() -> None:
    parts = Kit()
    parts.add_topic()
    first = await parts.append([b"a"], queue_id=3, producer=PRODUCER)
    parts.put_topic(Topic("orders", 4, 2))
    assert (await parts.append([b"b"], queue_id=3)).queue_offsets == [1], "while it is drained"
    parts.put_topic(Topic("orders", 2, 2))
    end = parts.store.end_offset
    with pytest.raises(Forbidden, match="bad queue, the topic has 2") as refused:
        await parts.append([b"c"], queue_id=3, producer=(*PRODUCER[:3], PRODUCER[3] + 1))
    assert (refused.value.details, parts.store.end_offset) == ({"queues": 2}, end)
    again = await parts.append([b"a"], queue_id=3, producer=PRODUCER)
    assert (again.duplicate, again.physical_offset) == (True, first.physical_offset)
    assert (await parts.append([b"c"], queue_id=1, producer=(*PRODUCER[:3], PRODUCER[3] + 2))).queue_offsets == [0]


@in_loop
async def test_a_mark_that_is_not_the_headers_is_refused() -> None:
    parts = Kit()
    parts.add_topic()
    request = batch(producer=PRODUCER)
    header = broker_pb2.AppendHeader(topic="orders", count=1)
    from penstock.proto import frames

    records = frames.unpack(request, broker_pb2.AppendHeader)[1]
    with pytest.raises(CorruptBatch, match="mark"):
        await parts.append_bytes(frames.pack(header, records))


@in_loop
async def test_a_repeated_batch_is_stored_once_and_answered_with_the_first_receipt() -> None:
    parts = Kit()
    parts.add_topic()
    first = await parts.append([b"a"], producer=PRODUCER)
    end = parts.store.end_offset
    again = await parts.append([b"a"], producer=PRODUCER)
    assert again.duplicate
    assert not first.duplicate
    assert (again.physical_offset, list(again.queue_offsets)) == (first.physical_offset, list(first.queue_offsets))
    assert parts.store.end_offset == end


@pytest.mark.parametrize("bodies", [[b"b"], [b"a", b"a"], []], ids=["another", "one more", "fewer"])
@in_loop
async def test_a_sequence_that_comes_with_other_messages_is_refused(bodies: list[bytes]) -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append([b"a", b"a", b"a"] if not bodies else [b"a"], producer=PRODUCER)
    end = parts.store.end_offset
    with pytest.raises(ChangedBatch, match=r"sequence \d+ stands for other messages, stored at 270: nothing was"):
        await parts.append(bodies or [b"a"], producer=PRODUCER)
    assert parts.store.end_offset == end


@in_loop
async def test_a_digest_tells_whether_a_sequence_is_the_same_also_after_a_restart() -> None:
    parts = Kit()
    parts.add_topic()
    first = await parts.append([b"a"], producer=PRODUCER, digest=11)
    for node in (parts, Kit.restarted(parts)):
        again = await node.append([b"a"], producer=PRODUCER, digest=11)
        assert (again.duplicate, again.physical_offset) == (True, first.physical_offset)
        with pytest.raises(ChangedBatch, match="stands for other messages"):
            await node.append([b"a"], producer=PRODUCER, digest=12)
        document = {"rows": node.tables.producers.rows()}
        loaded = ProducerTable()
        loaded.apply(1 << 40, SEQUENCES, document)
        assert loaded.rows() == node.tables.producers.rows()


@in_loop
async def test_runs_that_are_fenced_append_nothing() -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append(producer=PRODUCER, writer="w", run="r1")  # a shard that has not met the writer
    await parts[ExactlyOnce].writers.open_writer("w", "r1")
    producer_id, epoch, lane, sequence = PRODUCER
    await parts.append(producer=(producer_id, epoch, lane, sequence + 1), writer="w", run="r1")
    await parts[ExactlyOnce].writers.open_writer("w", "r2")
    end = parts.store.end_offset
    for each in (sequence, sequence + 2):  # one that it has stored, too
        with pytest.raises(StaleProducer, match="writer w: run r1 is fenced: run r2 has taken over"):
            await parts.append(producer=(producer_id, epoch, lane, each), writer="w", run="r1")
    assert parts.store.end_offset == end
    assert (await parts.append(producer=PRODUCER, writer="w", run="r2")).duplicate


@in_loop
async def test_the_duplicate_table_is_rebuilt_from_the_marks_in_the_log() -> None:
    parts = Kit()
    parts.add_topic()
    first = await parts.append([b"a"], producer=(7, 2, 3, 40))
    parts.dispatch()
    rebuilt = ProducerTable()
    for result in parts.store.replay(0):
        for marked in result.marks:
            rebuilt.restore(marked)
    receipt = rebuilt.find_duplicate(7, 2, "orders", 3, 40)
    assert receipt is not None
    assert receipt.start == first.physical_offset
    with pytest.raises(StaleProducer):
        rebuilt.find_duplicate(7, 1, "orders", 3, 41)


@in_loop
async def test_slaves_and_masters_without_enough_replicas_write_nothing() -> None:
    parts = Kit()
    parts.add_topic()
    end = parts.store.end_offset
    parts.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await parts.append()
    parts.role.is_master = False
    with pytest.raises(NotMaster, match=r"10\.0\.0\.1:10911"):
        await parts.append()
    parts.events.is_open = False
    with pytest.raises(BrokerUnavailable):
        await parts.append()
    assert parts.store.end_offset == end


@in_loop
async def test_sync_flush_answers_when_the_disk_has_it() -> None:
    parts = Kit(**SYNC, **PATIENT, flushes=False)
    parts.add_topic()
    pending = asyncio.create_task(parts.append())
    await eventually(lambda: parts.core.acknowledgements.waiting)
    assert not pending.done()
    parts.flush()
    assert (await pending).status == broker_pb2.SEND_OK


@in_loop
async def test_sync_flush_tells_a_time_out_and_a_repetition_waits_anew() -> None:
    parts = Kit(**SYNC, flushes=False)
    parts.add_topic()
    late = await parts.append(producer=PRODUCER)
    assert late.status == broker_pb2.FLUSH_DISK_TIMEOUT
    again = asyncio.create_task(parts.append(producer=PRODUCER))
    await asyncio.sleep(0)
    assert not again.done(), "a repetition waits until the first one is safe"
    parts.flush()
    assert ((await again).duplicate, (await again).status) == (True, broker_pb2.SEND_OK)


@in_loop
async def test_what_was_appended_before_the_broker_was_a_slave_is_not_acknowledged_when_it_is_master_again() -> None:
    """Another master was in between: the bytes may have gone, and others may be synced in their place."""
    for replicated in (False, True):
        parts = Kit(**SYNC, flushes=False)
        parts.add_topic()
        parts.role.waits_for_replicas = replicated
        send = parts[Produce].send
        first, second = (send.place(batch([body])) for body in (b"one", b"two"))
        pending = asyncio.create_task(send.acknowledge(first))
        await eventually(lambda parts=parts: parts.core.acknowledgements.waiting)
        parts.change_role(master=False)
        parts.role.epoch = 3
        parts.change_role(master=True)
        parts.flush()
        for late in (await pending, await send.acknowledge(second)):
            assert (late.status, late.epoch) == (broker_pb2.FLUSH_SLAVE_TIMEOUT, 1), "their places are of that epoch"
        parts.flushes = True
        assert (await parts.append()).status == broker_pb2.SEND_OK


@in_loop
async def test_replica_time_out_wins_over_flush_time_out_and_no_wait_waits_for_neither() -> None:
    parts = Kit(**SYNC, flushes=False)
    parts.add_topic()
    parts.role.waits_for_replicas = True
    parts.role.confirms = False
    assert (await parts.append()).status == broker_pb2.FLUSH_SLAVE_TIMEOUT
    assert (await parts.append(no_wait=True)).status == broker_pb2.SEND_OK


@in_loop
async def test_with_a_store_pool_an_append_is_answered_when_it_is_committed() -> None:
    parts = Kit(commits=False, **POOL, **PATIENT)
    parts.add_topic()
    pending = asyncio.create_task(parts.append())
    await eventually(lambda: parts.core.acknowledgements.waiting)
    assert parts.requested == parts.store.appended_offset, "a commit begins before anybody waits for it"
    assert not pending.done()
    parts.commit_pool()
    assert (await pending).status == broker_pb2.SEND_OK


@in_loop
async def test_with_a_store_pool_an_append_that_is_not_committed_in_time_is_told() -> None:
    parts = Kit(commits=False, **POOL)
    parts.add_topic()
    assert (await parts.append()).status == broker_pb2.FLUSH_DISK_TIMEOUT


@in_loop
async def test_with_a_store_pool_no_wait_waits_for_the_commit_alone() -> None:
    parts = Kit(commits=False, **POOL, **PATIENT)
    parts.add_topic()
    parts.role.waits_for_replicas, parts.role.confirms = True, False
    pending = asyncio.create_task(parts.append(no_wait=True))
    await eventually(lambda: parts.core.acknowledgements.waiting)
    assert not pending.done()
    parts.commit_pool()
    assert (await pending).status == broker_pb2.SEND_OK


@in_loop
async def test_after_a_failed_sync_nothing_is_acknowledged_any_more() -> None:
    parts = Kit(**SYNC, flushes=False)
    parts.add_topic()
    pending = asyncio.create_task(parts.append())
    await asyncio.sleep(0)
    parts.core.acknowledgements.fail(SyncFailed("the disk failed"))
    with pytest.raises(SyncFailed):
        await pending
    with pytest.raises(SyncFailed):
        await parts.append()
