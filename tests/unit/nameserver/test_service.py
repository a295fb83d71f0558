"""A real nameserver over real channels: sessions, liveness, watches, errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.nameserver.holders import TOPICS_AT_ONCE
from penstock.nameserver.key_values import KeyValues
from penstock.nameserver.routes import HEARTBEAT_INTERVAL_MS, RouteTable
from penstock.nameserver.service import NameserverService, _Session
from penstock.proto.errors import (
    FlowControl,
    InvalidArgument,
    InvalidName,
    KeyNotFound,
    PenstockError,
    WrongCluster,
    from_rpc_error,
)
from penstock.proto.wire.common_pb2 import SLAVE, Empty
from penstock.proto.wire.nameserver_pb2 import (
    BrokerDirective,
    BrokerReport,
    KeyQuery,
    KeyValue,
    RouteQuery,
    RouteUpdate,
    ShardName,
    TopicRoute,
    WatchRequest,
)
from tests.support.broker.registrations import members_of, queues_of, registration, topic_config
from tests.support.clock import ManualClock
from tests.support.cluster.nameserver import connected, nameserver
from tests.support.waiting import PATIENCE_S, eventually


async def register(stub: Any, report: BrokerReport.Registration) -> Any:
    """An open session whose broker is in the routes."""
    call = stub.BrokerSession()
    await call.write(BrokerReport(registration=report))
    directive = await call.read()
    assert isinstance(directive, BrokerDirective)
    return call


async def route(stub: Any, topic: str) -> TopicRoute:
    update: RouteUpdate = await stub.QueryRoute(RouteQuery(topics=[topic]))
    return update.routes[0]


async def becomes(stub: Any, topic: str, members: dict[str, dict[int, str]], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while (seen := members_of(await route(stub, topic))) != members:
        assert time.monotonic() < deadline, f"{topic}: {seen}, wanted {members}"
        await asyncio.sleep(0.005)


async def end_offset_of_the_last(stub: Any) -> int:
    shards = (await route(stub, "T")).shards
    return shards[-1].members[0].end_offset


@contextlib.asynccontextmanager
async def error_of(peer: str = "nameserver") -> AsyncIterator[list[PenstockError]]:
    """The :class:`PenstockError` that the calls in the block end with."""
    found: list[PenstockError] = []
    try:
        yield found
    except grpc.RpcError as error:
        found.append(from_rpc_error(error, peer))
    assert found, "no error was raised"


def test_a_registered_broker_is_told_its_shard_and_when_to_report(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            first = stub.BrokerSession()
            await first.write(BrokerReport(registration=registration(topics=("T",))))
            directive = await first.read()
            assert directive.heartbeat_interval_ms == HEARTBEAT_INTERVAL_MS
            assert [member.broker_id for member in directive.shard.members] == [0]
            await register(stub, registration(broker_id=1, role=SLAVE))
            directive = await first.read()
            assert [member.broker_id for member in directive.shard.members] == [0, 1]
            await register(stub, registration("broker-b", topics=("T",)))
            assert queues_of(await route(stub, "T")) == {"broker-a": 4, "broker-b": 4}
            assert (await stub.ListTopics(Empty())).topics == ["T"]
            cluster = await stub.QueryCluster(Empty())
            assert [shard.broker_name for shard in cluster.shards] == ["broker-a", "broker-b"]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["half-close", "cancel", "connection"])
def test_the_end_of_a_brokers_stream_takes_it_out_at_once(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        clock = ManualClock()  # stands still, so it cannot be the expiry
        async with nameserver(tmp_path, clock=clock) as address, connected(address) as stub:
            async with connected(address) as broker:
                call = await register(broker, registration(topics=("T",)))
                assert members_of(await route(stub, "T")) == {"broker-a": {0: "MASTER"}}
                if how == "half-close":
                    await call.done_writing()
                elif how == "cancel":
                    call.cancel()
                if how != "connection":
                    await becomes(stub, "T", {})
            await becomes(stub, "T", {})  # the block's end has closed the channel under the call

    asyncio.run(scenario())


def test_a_silent_broker_is_out_and_told_to_register_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with nameserver(tmp_path, clock=clock) as address, connected(address) as stub:
            silent = await register(stub, registration("broker-a", topics=("T",)))
            talking = await register(stub, registration("broker-b", topics=("T",)))
            for _ in range(6):
                clock.advance(0.4)
                await talking.write(BrokerReport(heartbeat=BrokerReport.Heartbeat(end_offset=int(clock.wall_ms()))))
                expected = int(clock.wall_ms())
                async with asyncio.timeout(PATIENCE_S):
                    while await end_offset_of_the_last(stub) != expected:  # noqa: ASYNC110  the event is the server's
                        await asyncio.sleep(0.005)
            assert set(queues_of(await route(stub, "T"))) == {"broker-a", "broker-b"}  # silent for 2.4 s
            clock.advance(0.11)
            await becomes(stub, "T", {"broker-b": {0: "MASTER"}})
            async with error_of() as errors:
                await silent.read()
            assert errors[0].retryable
            assert "register again" in str(errors[0])

    asyncio.run(scenario())


def test_wrong_cluster_reaches_the_broker_as_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            await register(stub, registration(cluster="c1"))
            second = stub.BrokerSession()
            await second.write(BrokerReport(registration=registration(broker_id=1, role=SLAVE, cluster="c2")))
            async with error_of() as errors:
                await second.read()
            assert type(errors[0]) is WrongCluster
            assert "is in cluster c1" in str(errors[0])
            assert members_of(await route(stub, "x")) == {"broker-a": {0: "MASTER"}}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "report", [BrokerReport(), BrokerReport(heartbeat=BrokerReport.Heartbeat()), BrokerReport(topic_changes={})]
)
def test_a_session_that_does_not_begin_with_a_registration_is_refused(tmp_path: Path, report: BrokerReport) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            call = stub.BrokerSession()
            await call.write(report)
            async with error_of() as errors:
                await call.read()
            assert type(errors[0]) is InvalidArgument

    asyncio.run(scenario())


def test_a_session_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.service.FIRST_REPORT_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            call = stub.BrokerSession()
            async with error_of() as errors:
                await call.read()
            assert "no registration" in str(errors[0])

    asyncio.run(scenario())


def test_a_reconnecting_broker_replaces_its_old_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            old = await register(stub, registration(topics=("T",)))
            new = await register(stub, registration(topics=("T",), instance="restarted"))
            async with error_of() as errors:
                await old.read()
            assert errors[0].retryable
            assert members_of(await route(stub, "T")) == {"broker-a": {0: "MASTER"}}
            new.cancel()
            await becomes(stub, "T", {})

    asyncio.run(scenario())


class Watching:
    """A client's watch, reading in the background."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.WatchRoutes()
        self.routes: dict[str, TopicRoute] = {}
        self.updates: list[str] = []

    async def read(self) -> None:
        async for update in self.call:
            for one in update.routes:
                self.routes[one.topic] = one
                self.updates.append(one.topic)

    def members(self, topic: str) -> dict[str, dict[int, str]] | None:
        return members_of(self.routes[topic]) if topic in self.routes else None


@contextlib.asynccontextmanager
async def watching(stub: Any, *topics: str) -> AsyncIterator[Watching]:
    watch = Watching(stub)
    await watch.call.write(WatchRequest(add_topics=topics))
    reading = asyncio.create_task(watch.read())
    try:
        yield watch
    finally:
        watch.call.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def test_a_watch_is_pushed_the_route_at_once_and_whenever_it_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub, watching(stub, "T", "new") as watch:
            await eventually(lambda: "T" in watch.routes and "new" in watch.routes)
            assert not watch.routes["T"].exists
            master = await register(stub, registration(topics=("T",)))
            await eventually(lambda: watch.members("T") == {"broker-a": {0: "MASTER"}})
            await eventually(lambda: watch.members("new") == {"broker-a": {0: "MASTER"}})  # where it could be made
            slave = await register(stub, registration(broker_id=1, role=SLAVE, topics=("T",)))
            await eventually(lambda: watch.members("T") == {"broker-a": {0: "MASTER", 1: "SLAVE"}})
            master.cancel()
            await eventually(lambda: watch.members("T") == {"broker-a": {1: "SLAVE"}})
            assert queues_of(watch.routes["T"]) == {"broker-a": 4}
            slave.cancel()
            await eventually(lambda: [each.broker_name for each in watch.routes["T"].absent] == ["broker-a"])
            assert watch.routes["T"].exists
            await stub.ForgetShard(ShardName(broker_name="broker-a"))
            await eventually(lambda: not watch.routes["T"].exists)

    asyncio.run(scenario())


def test_a_watch_hears_only_of_its_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            broker_a = await register(stub, registration("broker-a", topics=("T", "U")))
            await register(stub, registration("broker-b", topics=("V",)))
            async with watching(stub, "T", "V") as watch:
                await eventually(lambda: len(watch.updates) == 2)
                changes = BrokerReport.TopicChanges(updated=[topic_config("U", 7), topic_config("T", 7)])
                await broker_a.write(BrokerReport(topic_changes=changes))
                await eventually(lambda: queues_of(watch.routes["T"]) == {"broker-a": 7})
                assert watch.updates.count("V") == 1
                await watch.call.write(WatchRequest(remove_topics=["T"], add_topics=["U"]))
                await eventually(lambda: "U" in watch.routes)
                broker_a.cancel()
                await eventually(lambda: bool(watch.routes["U"].absent))
                assert not watch.routes["T"].absent  # what was last sent: it is watched no more

    asyncio.run(scenario())


def test_a_watcher_that_closed_its_side_is_served_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub, watching(stub, "T") as watch:
            await watch.call.done_writing()
            await eventually(lambda: "T" in watch.routes)
            await register(stub, registration(topics=("T",)))
            await eventually(lambda: watch.routes["T"].exists)

    asyncio.run(scenario())


def test_an_illegal_topic_name_ends_its_call_with_its_own_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            async with error_of() as errors:
                await route(stub, "a/b")
            assert type(errors[0]) is InvalidName
            watch = stub.WatchRoutes()
            await watch.write(WatchRequest(add_topics=["a b"]))
            async with error_of() as errors:
                await watch.read()
            assert type(errors[0]) is InvalidName
            assert not (await route(stub, "T")).exists

    asyncio.run(scenario())


def test_ten_thousand_topics_are_registered_and_pushed(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = tuple(f"topic-{number}" for number in range(10_000))
        async with nameserver(tmp_path) as address, connected(address) as stub, watching(stub, *topics) as watch:
            await eventually(lambda: len(watch.routes) == 10_000)
            await register(stub, registration(topics=topics))
            await eventually(lambda: all(one.exists for one in watch.routes.values()))

    asyncio.run(scenario())


def test_a_new_member_is_pushed_to_who_watches_ten_thousand_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        topics = tuple(f"topic-{number}" for number in range(10_000))
        async with nameserver(tmp_path) as address, connected(address) as stub:
            await register(stub, registration(topics=topics))
            async with watching(stub, *topics) as watch:
                await eventually(lambda: len(watch.routes) == 10_000)
                await register(stub, registration(broker_id=1, role=SLAVE, topics=topics))
                both = {"broker-a": {0: "MASTER", 1: "SLAVE"}}
                await eventually(lambda: all(watch.members(topic) == both for topic in topics))

    asyncio.run(scenario())


def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            for key, value in (("orders", "broker-a:4"), ("bills", "broker-b:4"), ("old", "x")):
                await stub.PutKeyValue(KeyValue(namespace="ORDER_TOPIC_CONFIG", key=key, value=value))
            await stub.DeleteKeyValue(KeyQuery(namespace="ORDER_TOPIC_CONFIG", key="old"))
        async with nameserver(tmp_path) as address, connected(address) as stub:
            found = await stub.GetKeyValue(KeyQuery(namespace="ORDER_TOPIC_CONFIG", key="orders"))
            assert found.value == "broker-a:4"
            listed = await stub.ListKeyValues(KeyQuery(namespace="ORDER_TOPIC_CONFIG"))
            assert [(one.key, one.value) for one in listed.values] == [
                ("bills", "broker-b:4"),
                ("orders", "broker-a:4"),
            ]
            async with error_of() as errors:
                await stub.GetKeyValue(KeyQuery(namespace="ORDER_TOPIC_CONFIG", key="old"))
            assert type(errors[0]) is KeyNotFound

    asyncio.run(scenario())


def test_a_stopping_nameserver_ends_its_streams_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.server.STOP_GRACE_S", 3600)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as server:
            address = await server.enter_async_context(nameserver(tmp_path))
            async with connected(address) as stub:
                session = await register(stub, registration(topics=("T",)))
                watch = stub.WatchRoutes()
                await watch.write(WatchRequest(add_topics=["T"]))
                await watch.read()
                await server.aclose()
                for call in (session, watch):
                    async with error_of() as errors:
                        await call.read()
                    assert errors[0].retryable
                    assert "stopping" in str(errors[0])

    asyncio.run(scenario())


def test_a_long_query_or_registration_holds_up_nobody(tmp_path: Path) -> None:
    """Between their parts others are served: counted by turns of the loop, not by a clock."""

    async def scenario() -> None:
        table = RouteTable()
        service = NameserverService(table, KeyValues.open(tmp_path / "kv.json"), ManualClock())
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        topics = tuple(f"topic-{number}" for number in range(10_000))
        session = _Session(1)
        await service._on_report(session, BrokerReport(registration=registration(topics=topics)))
        assert turns >= len(topics) // TOPICS_AT_ONCE - 1
        turns = 0
        await service.QueryRoute(RouteQuery(topics=topics), None)
        assert turns >= 99
        counting.cancel()

    asyncio.run(scenario())


def test_routes_of_more_bytes_than_one_answer_may_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.nameserver.service.ROUTES_BYTES_MAX", 1000)

    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            await register(stub, registration(topics=("T",)))
            async with error_of() as found:
                await stub.QueryRoute(RouteQuery(topics=[f"missing-{number}" for number in range(100)]))
            assert isinstance(found[0], FlowControl)
            assert "the routes of 100 topics have more than 1000 bytes: ask for fewer" in found[0].message

    asyncio.run(scenario())
