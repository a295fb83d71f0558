"""The broker's side: one session to each nameserver, kept up whatever happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.group.registration import Registration, merge_shard_views
from penstock.proto.errors import PenstockError, WrongCluster
from penstock.proto.wire.common_pb2 import MASTER, SLAVE, Role
from penstock.proto.wire.nameserver_pb2 import BrokerReport, RouteQuery, ShardMember, ShardView, TopicRoute
from tests.support.broker.registrations import queues_of, registration, topic_config
from tests.support.cluster.nameserver import connected, nameserver
from tests.support.waiting import eventually


class FakeBroker:
    """What a broker says of itself, and what it hears."""

    def __init__(self, broker_name: str = "broker-a", broker_id: int = 0, role: Role = MASTER) -> None:
        self.report = registration(broker_name, broker_id, role=role, topics=("T",))
        self.role, self.epoch, self.end_offset = role, 0, 0
        self.views: list[ShardView] = []
        self.refusals: list[PenstockError] = []
        self.beats = 0

    def heartbeat(self) -> BrokerReport.Heartbeat:
        self.beats += 1
        return BrokerReport.Heartbeat(role=self.role, epoch=self.epoch, end_offset=self.end_offset)

    def registering_with(self, *addresses: str) -> Registration:
        return Registration(
            list(addresses), lambda: self.report, self.heartbeat, self.views.append, self.refusals.append
        )


@contextlib.asynccontextmanager
async def running(registering: Registration) -> AsyncIterator[Registration]:
    task = asyncio.create_task(registering.run())
    try:
        yield registering
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def route(stub: Any, topic: str = "T") -> TopicRoute:
    update = await stub.QueryRoute(RouteQuery(topics=[topic]))
    one: TopicRoute = update.routes[0]
    return one


async def reaches(stub: Any, check: Any) -> None:
    """Wait until the route of T fulfils ``check``."""
    async with asyncio.timeout(60):
        while not check(await route(stub)):  # noqa: ASYNC110  there is no event on this side of the wire
            await asyncio.sleep(0.005)


def test_a_broker_is_registered_with_every_nameserver_and_leaves_all_when_cancelled(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with nameserver(tmp_path) as one, nameserver(tmp_path) as two, connected(one) as a, connected(two) as b:
            async with running(broker.registering_with(one, two)) as registering:
                await eventually(lambda: registering.registered == 2)
                assert (await route(a)).exists
                assert (await route(b)).exists
                assert len(broker.views) == 1  # both say the same
                assert broker.views[0].members[0].role == MASTER
            for stub in (a, b):
                await reaches(stub, lambda seen: bool(seen.absent))

    asyncio.run(scenario())


def test_topic_changes_role_changes_and_offsets_arrive(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with nameserver(tmp_path) as address, connected(address) as stub:  # noqa: SIM117  too long for one line
            async with running(broker.registering_with(address)) as registering:
                await eventually(lambda: registering.registered == 1)
                registering.topics_changed([topic_config("U", 9), topic_config("gone")], [])
                registering.topics_changed([topic_config("T", 2)], ["gone"])
                await reaches(stub, lambda seen: queues_of(seen) == {"broker-a": 2})
                assert queues_of(await route(stub, "U")) == {"broker-a": 9}
                assert not (await route(stub, "gone")).exists
                broker.role, broker.epoch, broker.end_offset = SLAVE, 4, 99
                registering.changed()
                await eventually(lambda: broker.views[-1].members[0].role == SLAVE)
                await reaches(stub, lambda seen: seen.shards[0].members[0].end_offset == 99)
                beats = broker.beats
                await eventually(lambda: broker.beats > beats, what="a heartbeat without a nudge")

    asyncio.run(scenario())


def test_a_broker_hears_of_its_shards_members(tmp_path: Path) -> None:
    async def scenario() -> None:
        master, slave = FakeBroker(), FakeBroker(broker_id=1, role=SLAVE)
        async with nameserver(tmp_path) as address, running(slave.registering_with(address)):
            await eventually(lambda: slave.views)
            async with running(master.registering_with(address)):
                await eventually(lambda: len(slave.views[-1].members) == 2)
                assert slave.views[-1].members[0].address == "broker-a-0:10911"
            await eventually(lambda: len(slave.views[-1].members) == 1)

    asyncio.run(scenario())


def test_a_broker_registers_again_when_its_nameserver_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with contextlib.AsyncExitStack() as stack:
            async with nameserver(tmp_path) as address:
                registering = await stack.enter_async_context(running(broker.registering_with(address)))
                await eventually(lambda: registering.registered == 1)
            await eventually(lambda: registering.registered == 0)
            broker.report = registration(topics=("T", "U"))
            async with nameserver(tmp_path, port=int(address.rpartition(":")[2])), connected(address) as stub:
                await eventually(lambda: registering.registered == 1)
                assert (await route(stub, "U")).exists

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    lost = [record for record in caplog.records if "session lost" in record.getMessage()]
    assert 1 <= len(lost) <= 3  # each way of being lost once, not each attempt


def test_a_cancellation_is_heeded_at_every_moment_of_a_stopping_nameserver(tmp_path: Path) -> None:
    async def scenario(turns: int) -> None:
        async with contextlib.AsyncExitStack() as server:
            address = await server.enter_async_context(nameserver(tmp_path))
            registering = FakeBroker().registering_with(address)
            task = asyncio.create_task(registering.run())
            await eventually(lambda: registering.registered == 1)
            stopping = asyncio.create_task(server.pop_all().aclose())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait((task,), timeout=60)
            assert done, f"still registering after a cancellation {turns} turns into the stop"
            await stopping

    for turns in range(40):
        asyncio.run(scenario(turns))


def test_a_nameserver_that_is_away_does_not_keep_the_broker_from_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with (
            nameserver(tmp_path) as address,
            running(broker.registering_with("127.0.0.1:1", address)) as registering,
        ):
            await eventually(lambda: registering.registered == 1)
            assert not broker.refusals

    asyncio.run(scenario())


def test_a_refusal_is_told_and_logged_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        first, second = FakeBroker(), FakeBroker()
        second.report = registration(address="elsewhere:1", instance="another", topics=("T",))
        asked = 0

        def describe() -> BrokerReport.Registration:
            nonlocal asked
            asked += 1
            return second.report

        async with nameserver(tmp_path) as address, contextlib.AsyncExitStack() as stack:
            async with running(first.registering_with(address)) as registering:
                await eventually(lambda: registering.registered == 1)
                late = Registration([address], describe, second.heartbeat, second.views.append, second.refusals.append)
                await stack.enter_async_context(running(late))
                await eventually(lambda: asked >= 3)
                assert [type(error) for error in second.refusals] == [WrongCluster]
                assert "alive at broker-a-0:10911" in str(second.refusals[0])
            await eventually(lambda: late.registered == 1)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert sum("registration refused" in record.getMessage() for record in caplog.records) == 1


def test_a_port_that_accepts_and_says_nothing_does_not_hang_the_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.group.registration.WELCOME_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        broker, asked = FakeBroker(), 0

        def describe() -> BrokerReport.Registration:
            nonlocal asked
            asked += 1
            return broker.report

        with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts, nobody answers
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            async with running(Registration([address], describe, broker.heartbeat, broker.views.append)):
                await eventually(lambda: asked >= 2)

    asyncio.run(scenario())


def member(broker_id: int, role: Role) -> ShardMember:
    return ShardMember(broker_id=broker_id, address=f"h{broker_id}:1", role=role)


def test_what_nameservers_know_of_a_shard_adds_up() -> None:
    restarted = ShardView(broker_name="a", epoch=0, members=[member(1, SLAVE)])
    partial = ShardView(broker_name="a", epoch=3, members=[member(0, MASTER)])
    whole = ShardView(broker_name="a", epoch=3, members=[member(0, SLAVE), member(2, SLAVE)])
    for views in ([restarted, partial, whole], [whole, partial, restarted]):
        merged = merge_shard_views(views)
        assert merged.epoch == 3
        assert [(one.broker_id, one.role) for one in merged.members] == [(0, MASTER), (1, SLAVE), (2, SLAVE)]


def test_an_old_account_of_a_master_does_not_outlive_a_new_epoch() -> None:
    old = ShardView(broker_name="a", epoch=1, members=[member(0, MASTER), member(1, SLAVE)])
    new = ShardView(broker_name="a", epoch=2, members=[member(0, SLAVE), member(1, MASTER)])
    for views in ([old, new], [new, old]):
        assert [one.role for one in merge_shard_views(views).members] == [SLAVE, MASTER]
