"""Append streams from the broker's side: every request has its answer, in order, whatever became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.core import data_calls
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.produce.produce import Produce
from penstock.broker.produce.send import Placed
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, PenstockError, TopicNotFound
from penstock.proto.wire import broker_pb2
from tests.support.broker.requests import batch, chunk
from tests.support.broker.running_broker import running
from tests.support.data import DataConnection, connected
from tests.support.waiting import eventually


class Stream:
    """One connection to a running broker's data port."""

    def __init__(self, connection: DataConnection) -> None:
        self.connection = connection
        self._number = 0

    async def send(self, *requests: bytes) -> None:
        for request in requests:
            self._number += 1
            self.connection.send(self._number, Method.APPEND, request)
        await self.connection.writer.drain()

    async def answer(self) -> broker_pb2.AppendReceipt:
        return broker_pb2.AppendReceipt.FromString(await asyncio.wait_for(self.connection.answer(), 10))

    async def refusal(self) -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            await self.answer()
        return caught.value

    async def ended(self) -> bool:
        return await asyncio.wait_for(self.connection.reader.read(), 10) == b""


@contextlib.asynccontextmanager
async def streaming(broker: Broker) -> AsyncIterator[Stream]:
    async with connected("127.0.0.1", broker.data.number) as connection:
        yield Stream(connection)


def held_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No append is acknowledged until the event is set."""
    send, allowed = broker.features[Produce].send, asyncio.Event()
    acknowledge = send.acknowledge

    async def held(placed: Placed) -> broker_pb2.AppendReceipt:
        await allowed.wait()
        return await acknowledge(placed)

    monkeypatch.setattr(send, "acknowledge", held)
    return allowed


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_answers_keep_the_order_of_the_requests_and_errors_are_answers_too(tmp_path: Path, flush: str) -> None:
    async def check() -> None:
        async with running(tmp_path, flushDiskType=flush) as (broker, caller), streaming(broker) as stream:
            await caller.create_topic()
            await stream.send(batch([b"1"]), batch(topic="missing"), b"\0", batch([b"2"]), batch([b"3"], no_wait=True))
            assert list((await stream.answer()).queue_offsets) == [0]
            assert isinstance(await stream.refusal(), TopicNotFound)
            assert isinstance(await stream.refusal(), InvalidArgument)
            assert [list((await stream.answer()).queue_offsets) for _ in range(2)] == [[1], [2]]

    asyncio.run(check())


def test_an_unexpected_error_is_internal_and_the_stream_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with running(tmp_path) as (broker, caller), streaming(broker) as stream:
            await caller.create_topic()
            with monkeypatch.context() as patch:
                patch.setattr(broker.core.store, "append", lambda *args, **options: 1 / 0)
                await stream.send(batch())
                assert "internal error, see the server's log" in str(await stream.refusal())
            await stream.send(batch())
            assert list((await stream.answer()).queue_offsets) == [0]

    asyncio.run(check())


def test_a_stream_is_not_read_further_than_its_answers_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_calls, "UNANSWERED_MAX", 3)

    async def check() -> None:
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as (broker, caller), streaming(broker) as stream:
            await caller.create_topic()
            allowed = held_answers(broker, monkeypatch)
            await stream.send(*(batch([b"%d" % number]) for number in range(8)))
            counter = broker.core.counters.topic("orders")
            await eventually(lambda: counter.messages_in == 3, what="three that wait")
            await asyncio.sleep(0.05)
            assert counter.messages_in == 3
            assert not broker.features[Produce].streams.is_answered()
            allowed.set()
            assert [list((await stream.answer()).queue_offsets) for _ in range(8)] == [[n] for n in range(8)]
            await eventually(broker.features[Produce].streams.is_answered, what="the last answer")

    asyncio.run(check())


def test_a_stopping_broker_refuses_by_name_and_ends_idle_streams_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with contextlib.AsyncExitStack() as stack:
            broker, caller = await stack.enter_async_context(running(tmp_path))
            await caller.create_topic()
            busy, idle = [await stack.enter_async_context(streaming(broker)) for _ in range(2)]
            await busy.send(batch())
            await idle.send(batch())
            await busy.answer()
            await idle.answer()
            broker.core.events.is_open = False
            await busy.send(batch())
            assert isinstance(await busy.refusal(), BrokerUnavailable)
            await asyncio.wait_for(broker.features[Produce].stop(), 5)
            for stream in (busy, idle):
                assert await stream.ended()

    asyncio.run(check())


def test_a_stopping_broker_answers_appends_also_where_the_same_connection_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as (broker, caller), streaming(broker) as stream:
            await caller.create_topic()
            stages = broker.features[ExactlyOnce].stages
            assert await stream.connection.ask(Method.STAGE, chunk()) == b""
            allowed = held_answers(broker, monkeypatch)
            await stream.send(batch())
            await eventually(lambda: not broker.features[Produce].streams.is_answered(), what="an append that waits")
            broker.core.events.is_open = False
            await stages.close()
            allowed.set()
            assert list((await stream.answer()).queue_offsets) == [0]
            await broker.features[Produce].stop()
            assert await stream.ended()

    asyncio.run(check())


def test_a_client_that_vanishes_leaves_nothing_behind(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as (broker, caller), streaming(broker) as stream:
            await caller.create_topic()
            await stream.send(batch(), batch())
            await eventually(lambda: len(broker.features[Produce].streams._open) == 1, what="the stream")
            stream.connection.writer.transport.abort()
            await eventually(lambda: not broker.features[Produce].streams._open, what="its end")
            assert (await caller.append([b"next"])).status == broker_pb2.SEND_OK

    asyncio.run(check())
