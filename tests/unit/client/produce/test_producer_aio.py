"""The asyncio twin of the producer."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from penstock.client import Message
from penstock.client.aio import AsyncProducer
from penstock.client.aio.turns import WAITING_MAX, Turns, to_the_end
from penstock.formats.columns import Column
from penstock.proto.errors import BufferFull, ClientClosed, DeliveryFailed, InvalidArgument
from tests.support.client.running_cluster import RunningBroker, RunningCluster, stored
from tests.support.waiting import eventually

TOPIC = "orders"
NONE = Column.repeated(b"", 3)


def test_the_asyncio_twin_refuses_what_is_no_body_or_no_message(one: RunningCluster) -> None:
    async def run() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            for _ in range(2):  # before and after its topic's route is known
                with pytest.raises(InvalidArgument, match="body must be bytes, not int"):
                    await producer.send(TOPIC, 5)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match="a batch is of Message, not of 5"):
                    producer.send_batch_async([5])  # type: ignore[list-item]
                await producer.send(TOPIC, b"x")

    asyncio.run(run())


def test_the_asyncio_twin_sends_many_at_once(one: RunningCluster) -> None:
    async def run() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            receipts = await asyncio.gather(*(producer.send(TOPIC, b"%d" % number) for number in range(100)))
            assert len({receipt.message_id for receipt in receipts}) == 100
            await producer.produce(TOPIC, b"p")
            await producer.produce_many(TOPIC, [b"m"])
            producer.send_oneway(TOPIC, b"o")
            assert len(await producer.send_batch([Message(TOPIC, b"b")])) == 1
            await producer.flush()
            with pytest.raises(InvalidArgument):
                await producer.send(TOPIC, b"")

    asyncio.run(run())
    assert len(stored(one)) == 104


def test_a_loop_that_sends_itself_waits_for_no_room(one: RunningCluster, broker: RunningBroker) -> None:
    async def run() -> None:
        async with AsyncProducer(one.namesrv, buffer_bytes=84 << 10, send_timeout_s=60) as producer:
            producer.work_in_loop()
            first = producer.send_async(TOPIC, b"first")
            await first
            sends, batches = [], []
            with broker.faults.holding("Append"):
                for number in range(40):  # of which the body is the smallest part
                    sends.append(producer.send_async(TOPIC, b"%d" % number, properties={"p": "v" * 9000}))
                    messages = [Message(TOPIC, b"b", properties={"p": "v" * 9000})] * 2
                    batches += producer.send_batch_async(messages)
                    await producer.produce(TOPIC, b"p") if number < 2 else None  # there is room
                await asyncio.sleep(0)
            await asyncio.gather(*sends, *batches)
            await producer.flush()

    asyncio.run(run())
    assert len(stored(one)) == 1 + 40 * 3 + 2


@pytest.mark.parametrize("in_loop", [False, True])
def test_columns_go_as_one_or_are_to_be_sent_otherwise(
    one: RunningCluster, broker: RunningBroker, *, in_loop: bool
) -> None:
    bodies, properties = Column.of([b"1", b"2", b"3"]), Column.of([b"TAGS\x01a\x02", b"", b"TAGS\x01b\x02"])

    def started(producer: AsyncProducer, bodies: Column, properties: Column) -> asyncio.Future[Any] | None:
        found = asyncio.get_running_loop().create_future()
        is_sent = producer.send_columns(TOPIC, bodies, properties, lambda sent: found.set_result(sent.result()))
        return found if is_sent else None

    async def run() -> None:
        producer = AsyncProducer(one.namesrv, buffer_bytes=64 << 10)
        if in_loop:
            producer.work_in_loop()
        assert started(producer, bodies, properties) is None  # its route is not known
        await producer.send(TOPIC, b"0")
        first, second = started(producer, bodies, properties), started(producer, bodies, NONE)
        assert first is not None
        assert second is not None
        place, other = await first, await second
        assert place.queue_id != other.queue_id or abs(place.queue_offset - other.queue_offset) == 3
        with broker.faults.holding("Append"):
            held = started(producer, Column.of([b"l" * 40_000]), Column.of([b""]))
            assert held is not None
            assert started(producer, Column.of([b"l" * 40_000]), Column.of([b""])) is None  # no room
        await held
        await producer.close()
        assert started(producer, bodies, properties) is None

    asyncio.run(run())
    assert sorted(map(len, stored(one))) == [1] * 7 + [40_000]


def test_what_is_produced_as_the_loop_takes_over_is_sent(one: RunningCluster) -> None:
    async def run() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            await asyncio.to_thread(producer.producer.prepare, TOPIC)
            producer.work_in_loop()
            await asyncio.sleep(0)
            await producer.produce(TOPIC, b"x")
            await eventually(lambda: not producer.pending)

    asyncio.run(run())
    assert stored(one) == [b"x"]


def test_a_batch_without_waiting_also_where_its_topic_is_not_known_yet(one: RunningCluster) -> None:
    messages = [Message(TOPIC, b"%d" % number, "tag", ["key"], {"p": "v"}) for number in range(10)]

    async def run() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            first = producer.send_batch_async(messages)
            second = await asyncio.gather(*producer.send_batch_async(messages))
            await asyncio.gather(*first)
            third = await asyncio.gather(*producer.send_batch_async(messages))
            assert [each.queue_offset - third[0].queue_offset for each in third] == list(range(10))
            assert len({each.message_id for each in (*second, *third)}) == 20
            with pytest.raises(InvalidArgument, match="no messages"):
                producer.send_batch_async([])
            with pytest.raises(InvalidArgument, match="timeout_s"):
                producer.send_batch_async([Message(TOPIC, b"x")], timeout_s=-1)

    asyncio.run(run())
    assert len(stored(one)) == 30


def test_what_sends_without_waiting_is_no_coroutine_and_keeps_the_order(
    one: RunningCluster, broker: RunningBroker
) -> None:
    async def run() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            # The first message has to wait for the topic's route; those behind it may not overtake it.
            receipts = [producer.send_async(TOPIC, b"%d" % number, sharding_key="k") for number in range(50)]
            assert producer.send_oneway(TOPIC, b"50", sharding_key="k") is None
            offsets = [(await each).queue_offset for each in receipts]
            assert offsets == sorted(offsets)
            await producer.flush()
            with pytest.raises(InvalidArgument, match="timeout_s"):
                producer.send_async(TOPIC, b"x", timeout_s=-1)
            with pytest.raises(InvalidArgument):
                await producer.send_async(TOPIC, b"")
        with pytest.raises(ClientClosed):
            await producer.send_async(TOPIC, b"x")

    asyncio.run(run())
    assert stored(one) == [b"%d" % number for number in range(51)]


def test_close_waits_for_sends_that_were_not_taken_yet(one: RunningCluster) -> None:
    async def run() -> None:
        producer = AsyncProducer(one.namesrv)
        producer.send_oneway(TOPIC, b"first")
        producer.send_oneway(TOPIC, b"second")
        await producer.close()

    asyncio.run(run())
    assert sorted(stored(one)) == [b"first", b"second"]


def test_the_time_of_calls_that_line_up_begins_when_they_are_made(one: RunningCluster, broker: RunningBroker) -> None:
    async def run() -> None:
        body = b"x" * 60_000
        producer = AsyncProducer(one.namesrv, buffer_bytes=64 << 10, batch_bytes_max=64 << 10, linger_ms=10_000)
        await producer.send(TOPIC, b"first")
        await eventually(lambda: not producer.pending)
        with broker.faults.holding("Append"):
            await producer.produce(TOPIC, body)  # open yet, and counted into the buffer by whoever needs room
            waiting = asyncio.create_task(producer.produce(TOPIC, body, timeout_s=60))
            await eventually(lambda: producer._turns.is_waiting(TOPIC))
            with pytest.raises(DeliveryFailed, match="2 messages unknown, first: 1 calls wait for a route or for room"):
                await producer.flush(0.01)
            assert not waiting.done()
            behind = asyncio.create_task(producer.produce(TOPIC, body, timeout_s=0))
            with pytest.raises(DeliveryFailed, match="the producer was closed"):
                await producer.close(0.01)
            for each in (waiting, behind):
                with pytest.raises(ClientClosed):
                    await each

    asyncio.run(run())


def test_what_is_left_of_a_calls_time_is_for_its_turn(one: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, left = threading.Event(), {}

    def produce(topic: str, body: bytes, *, timeout_s: float) -> None:
        left[body] = timeout_s
        may_end.wait()

    async def run() -> None:
        async with AsyncProducer(one.namesrv, send_timeout_s=50, delivery_timeout_s=60) as producer:
            monkeypatch.setattr(producer.producer, "produce", produce)
            calls = [producer.produce(TOPIC, body, timeout_s=given) for body, given in ((b"a", None), (b"b", 40))]
            tasks = [asyncio.create_task(call) for call in calls]
            await eventually(lambda: b"a" in left)
            late = time.monotonic() + 0.1
            await eventually(lambda: time.monotonic() > late)
            may_end.set()
            await asyncio.gather(*tasks)
            assert left[b"a"] == 50  # the route is not known yet
            assert left[b"b"] < 39.9

    asyncio.run(run())


def test_a_cancelled_receipt_leaves_the_others_their_turn(one: RunningCluster) -> None:
    async def run() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            first, second = (producer.send_async(TOPIC, body) for body in (b"1", b"2"))
            first.cancel()
            assert (await second).queue_offset >= 0

    asyncio.run(run())
    assert b"2" in stored(one)


def test_calls_that_wait_have_a_limit() -> None:
    async def run() -> None:
        turns, may_end = Turns(), asyncio.Event()
        loop = asyncio.get_running_loop()
        made = [turns.line_up(TOPIC, lambda: asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result())]
        made += [turns.line_up(TOPIC, int) for _ in range(WAITING_MAX - 1)]
        with pytest.raises(BufferFull, match="await some"):
            turns.line_up(TOPIC, int)
        made[-1].cancel()
        for task in made[1:-1]:
            task.cancel()
        may_end.set()
        assert await turns.settled(60) == 0
        await eventually(lambda: not turns.is_waiting(TOPIC))

    asyncio.run(run())


def test_calls_that_would_not_block_when_their_turn_comes_need_no_thread_and_keep_their_order() -> None:
    async def run() -> None:
        turns, may_end, loop_thread = Turns(), threading.Event(), threading.current_thread()
        taken: list[tuple[int, threading.Thread]] = []

        def call(number: int) -> None:
            if number == 0:
                may_end.wait()
            taken.append((number, threading.current_thread()))

        def line_up(number: int, *, blocks: bool) -> asyncio.Future[None]:
            return turns.line_up(TOPIC, lambda: call(number), lambda: blocks)

        made = [line_up(0, blocks=True)]
        made += [line_up(number, blocks=number == 500) for number in range(1, 1000)]
        may_end.set()
        await asyncio.gather(*made)
        await eventually(lambda: not turns.is_waiting(TOPIC))
        assert [number for number, _ in taken] == list(range(1000))
        assert [number for number, thread in taken if thread is not loop_thread] == [0, 500]

    asyncio.run(run())


def test_a_call_that_fails_leaves_the_next_one_its_turn() -> None:
    async def run() -> None:
        turns = Turns()

        def fail() -> None:
            raise InvalidArgument("no")

        def find_none() -> object:
            return next(iter(()))

        refused = turns.line_up(TOPIC, fail)
        unfound = [turns.line_up(TOPIC, find_none, lambda blocks=blocks: blocks) for blocks in (True, False)]
        done = turns.line_up(TOPIC, int, lambda: False)
        assert await done == 0
        assert isinstance(refused.exception(), InvalidArgument)
        for each in [*unfound, to_the_end(find_none)]:
            with pytest.raises(RuntimeError, match="handed in raised StopIteration"):
                await each

    asyncio.run(run())
