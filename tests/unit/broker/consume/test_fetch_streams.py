"""Fetches over the data port, from the broker's side: waits, ends of waits, readers that are slow, gone, or nobody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.consume.consume import Consume
from penstock.formats.record.reading import RecordBatch
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, FlowControl, InvalidArgument, PenstockError, Unauthorized
from penstock.proto.wire.broker_pb2 import CreateTopicRequest, FetchReply
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.proto.wire.common_pb2 import TopicConfig
from penstock.runtime.channel import open_async_channel
from penstock.runtime.data import sending as data_sending
from penstock.runtime.security.credentials import Credentials, Security
from penstock.runtime.security.signatures import signed
from penstock.runtime.turns import Turns
from tests.support.broker.requests import batch, wanting
from tests.support.broker.running_broker import Caller, running
from tests.support.cluster.certificates import put
from tests.support.data import DataConnection, connected
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually

MIB = 1 << 20


class Fetches:
    """One connection that fetches."""

    def __init__(self, connection: DataConnection) -> None:
        self.connection = connection

    def begin(self, number: int, *queues: tuple[int, int], **settings: int) -> None:
        self.connection.send(number, Method.FETCH, frames.pack(wanting(*queues, **settings)))

    def end_wait(self, number: int) -> None:
        self.connection.send(number, Method.FETCH)

    async def answer(self) -> tuple[int, FetchReply, list[bytes]]:
        """Number, reply, and the bodies of what comes next."""
        async with asyncio.timeout(20):
            number, kind, content = await self.connection.receive()
        assert kind == 1, content
        reply, records = frames.unpack(content, FetchReply)
        return number, reply, RecordBatch(bytes(records)).bodies()

    async def refusal(self) -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            async with asyncio.timeout(20):
                await self.connection.answer()
        return caught.value

    def stop_reading(self) -> None:
        self.connection.reader._transport.pause_reading()  # type: ignore[attr-defined]

    def read_on(self) -> None:
        self.connection.reader._transport.resume_reading()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def fetching(broker: Broker) -> AsyncIterator[Fetches]:
    async with connected("127.0.0.1", broker.data.number) as connection:
        yield Fetches(connection)


async def fill(caller: Caller, count: int) -> list[bytes]:
    """So many batches of one record of 200 kB, each another body."""
    await caller.create_topic(queues=1)
    made = [bytes([number, 255 - number]) * 100_000 for number in range(count)]
    for body in made:
        await caller.append([body])
    return made


@in_own_loop
async def test_fetches_of_one_connection_are_answered_when_each_is_due(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        fetches.begin(1, (0, 0), max_wait_ms=60_000)
        fetches.begin(2, (1, 0), max_wait_ms=60_000)
        fetches.begin(3, (2, 0))
        assert (await fetches.answer())[::2] == (3, [])
        await caller.append([b"one"], queue_id=1)
        assert (await fetches.answer())[::2] == (2, [b"one"])
        await caller.append([b"two"], queue_id=0)
        assert (await fetches.answer())[::2] == (1, [b"two"])


@in_own_loop
async def test_a_fetch_that_waits_for_messages_alone_has_no_task(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        feature = broker.features[Consume]
        fetches.begin(1, (0, 0), max_wait_ms=60_000)
        await eventually(lambda: len(feature.fetch.waiters) == 1, what="the wait")
        (stream,) = feature.streams._open
        assert stream.waiting[1].task is None
        await caller.append([b"one"])
        assert (await fetches.answer())[::2] == (1, [b"one"])
        assert not stream.waiting
        assert not feature.fetch.load.fetches


@in_own_loop
async def test_a_fetch_whose_turn_is_over_is_answered_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        looks = iter([True, False, False, True, False])  # one begins, has news, is answered; another begins
        monkeypatch.setattr(Turns, "has_time", property(lambda _: next(looks, True)))
        fetches.begin(1, (0, 0), max_wait_ms=60_000)
        await eventually(lambda: len(broker.features[Consume].fetch.waiters) == 1, what="the wait")
        await caller.append([b"one"])
        assert (await fetches.answer())[::2] == (1, [b"one"])
        fetches.begin(2, (0, 0), max_wait_ms=60_000)
        assert (await fetches.answer())[::2] == (2, [b"one"])


@in_own_loop
async def test_a_wait_that_brings_nothing_ends_with_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        fetches.begin(1, (0, 0), (1, 0), max_wait_ms=20)
        assert (await fetches.answer())[::2] == (1, [])
        assert not broker.features[Consume].fetch.waiters


@in_own_loop
async def test_a_fetch_of_nothing_ends_the_wait_of_its_number(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        waiters = broker.features[Consume].fetch.waiters
        fetches.end_wait(7)  # nobody's
        fetches.begin(7, (0, 0), max_wait_ms=60_000)
        fetches.begin(8, (0, 0), max_wait_ms=60_000)
        await eventually(lambda: len(waiters) == 2, what="both to wait")
        fetches.end_wait(7)
        number, reply, _ = await fetches.answer()
        assert (number, list(reply.results)) == (7, [])
        await eventually(lambda: len(waiters) == 1, what="its end")
        fetches.begin(7, (1, 0), max_wait_ms=60_000)  # the number may be used again
        await caller.append([b"x"], queue_id=1)
        assert (await fetches.answer())[::2] == (7, [b"x"])


@in_own_loop
async def test_what_makes_no_sense_is_refused_by_name_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, maxFetchesPerConnection=2) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        fetches.connection.send(1, Method.FETCH, b"\xff" * 9)
        assert isinstance(await fetches.refusal(), InvalidArgument)
        fetches.begin(2, (0, -1))
        assert "neither may be negative" in (await fetches.refusal()).message
        fetches.begin(3, (0, 0), max_wait_ms=60_000)
        fetches.begin(3, (0, 0), max_wait_ms=60_000)
        assert "fetch 3 is under way" in (await fetches.refusal()).message
        fetches.begin(4, (1, 0), max_wait_ms=60_000)
        fetches.begin(5, (2, 0), max_wait_ms=60_000)
        assert isinstance(await fetches.refusal(), FlowControl)
        await caller.append([b"x"], queue_id=1)
        assert (await fetches.answer())[::2] == (4, [b"x"])


@in_own_loop
async def test_a_client_that_leaves_waits_for_nothing_any_more(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller):
        await caller.create_topic()
        feature = broker.features[Consume]
        async with fetching(broker) as fetches:
            for number in range(10):
                fetches.begin(number, (0, 0), max_wait_ms=60_000)
            await eventually(lambda: len(feature.fetch.waiters) == 10, what="all to wait")
        await eventually(lambda: not feature.fetch.waiters and not feature.fetch.load.fetches, what="their end")
        assert not feature.streams._open


@in_own_loop
async def test_a_stopping_broker_answers_those_that_wait_and_refuses_others(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        feature = broker.features[Consume]
        fetches.begin(1, (0, 0), max_wait_ms=60_000)
        await eventually(lambda: len(feature.fetch.waiters) == 1, what="the wait")
        await feature.stop()
        assert (await fetches.answer())[::2] == (1, [])
        fetches.begin(2, (0, 0), max_wait_ms=60_000)
        assert isinstance(await fetches.refusal(), BrokerUnavailable)


@in_own_loop
async def test_absurd_sizes_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        bodies = await fill(caller, 90)
        fetches.begin(1, (0, 0), max_bytes=2**31 - 1, max_bytes_per_queue=2**31 - 1)
        _, _, found = await fetches.answer()
        assert found == bodies[: len(found)]
        assert 15 * MIB < sum(map(len, found)) <= 16 * MIB


@in_own_loop
async def test_a_slow_reader_is_sent_what_it_takes_while_others_have_their_turn(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as slow, fetching(broker) as other:
        bodies = await fill(caller, 80)
        load = broker.features[Consume].fetch.load
        slow.stop_reading()
        for number in range(3):
            slow.begin(number, (0, 0), max_bytes=16 * MIB)
        await eventually(lambda: load.reply_bytes > 10 * MIB, what="answers that are not taken")
        other.begin(1, (0, 0), max_bytes=1 * MIB)
        assert (await other.answer())[2] == bodies[:5]
        slow.read_on()
        for _ in range(3):
            assert (await slow.answer())[2] == bodies[:80]
        await eventually(lambda: load.reply_bytes == 0 and not load._bytes_of, what="all to be taken")


@in_own_loop
async def test_an_answer_that_is_not_taken_ends_its_connection_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as slow:
        await fill(caller, 80)
        load = broker.features[Consume].fetch.load
        monkeypatch.setattr(data_sending, "TAKEN_S", 0.3)
        slow.stop_reading()
        slow.begin(1, (0, 0), max_bytes=16 * MIB)
        await eventually(lambda: load.reply_bytes > 10 * MIB, what="an answer that is not taken")
        await eventually(lambda: not load.reply_bytes and not broker.features[Consume].streams._open, what="its end")


@in_own_loop
async def test_log_files_that_are_deleted_under_an_answer_stay_for_it(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "fileReservedTime": 1,
        "cleanResourceInterval": 100,
        "deleteCommitLogFilesInterval": 0,
        "destroyMapedFileIntervalForcibly": 1,
    }
    async with running(tmp_path, **settings) as (broker, caller), fetching(broker) as fetches:
        bodies = await fill(caller, 80)
        load = broker.features[Consume].fetch.load
        fetches.stop_reading()
        fetches.begin(1, (0, 0), max_bytes=16 * MIB)
        await eventually(lambda: load.reply_bytes > 10 * MIB, what="an answer that is not taken")
        then = time.time() - 7200
        for path in (tmp_path / "store/commitlog").iterdir():
            os.utime(path, (then, then))
        await eventually(lambda: broker.core.store.min_offset > 14 * MIB, what="the deletion")
        fetches.read_on()
        found = (await fetches.answer())[2]
        assert len(found) > 70
        assert found == bodies[: len(found)]


@in_own_loop
async def test_a_user_that_is_removed_fetches_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = Credentials("loader", "s-1")
    users = put(tmp_path / "users", f"{user.access_key} = {user.secret_key}\n")
    settings = {
        "authenticationEnabled": "true",
        "authConfigPath": users,
        "innerClientAuthenticationCredentials": '{"accessKey":"cluster","secretKey":"s-0"}',
    }
    async with running(tmp_path, **settings) as (broker, _):
        metadata = dict(signed(user, int(time.time())))
        async with connected("127.0.0.1", broker.data.number, metadata) as connection:
            async with open_async_channel(broker.address, Security(credentials=user)) as channel:
                config = TopicConfig(topic="orders", read_queues=1, write_queues=1, perm=6)
                stub = BrokerStub(channel)  # type: ignore[no-untyped-call]  # generated code
                await stub.CreateTopic(CreateTopicRequest(config=config), timeout=20)
            waiters = broker.features[Consume].fetch.waiters
            Fetches(connection).begin(1, (0, 0), max_wait_ms=60_000)
            await eventually(lambda: len(waiters) == 1, what="the wait")
            put(users, "other = s-2\n")
            assert isinstance(await Fetches(connection).refusal(), Unauthorized)
            await eventually(lambda: not waiters, what="its end")


@in_own_loop
async def test_appends_and_fetches_share_a_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, caller), fetching(broker) as fetches:
        await caller.create_topic()
        fetches.begin(1, (0, 0), max_wait_ms=60_000)
        await fetches.connection.ask(Method.PING)
        fetches.connection.send(2, Method.APPEND, batch([b"x"]))
        numbers = {(await asyncio.wait_for(fetches.connection.receive(), 20))[0] for _ in range(2)}
        assert numbers == {1, 2}
