"""A slave's role ends when it is told to, at whatever moment of its following."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.core.tables.uninterrupted import to_its_end
from penstock.broker.group.roles import SlaveRole
from penstock.proto.wire import common_pb2
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView
from penstock.replication import EpochsInMemory, Replica, ReplicationConfig
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import identity, new_master, port_of, serving
from tests.support.waiting import eventually

TURNS = 12
"""After so many rounds of the loop a slave has changed its master."""


def led_by(address: str, broker_id: int, data_port: int) -> ShardView:
    return ShardView(
        members=[ShardMember(broker_id=broker_id, address=address, role=common_pb2.MASTER, data_port=data_port)]
    )


def new_role() -> SlaveRole:
    epochs = EpochsInMemory()
    replica = Replica(
        identity(1),
        MemoryLog(),
        config=ReplicationConfig(reconnect_min_ms=5, reconnect_max_ms=20),
        epochs=epochs,
        on_appended=lambda: None,
        on_confirm=lambda offset: None,
        pending_commits=list,
    )
    return SlaveRole(identity(1), replica, epochs)


@pytest.mark.parametrize("turns", range(TURNS))
def test_it_ends_also_while_it_changes_its_master(turns: int) -> None:
    async def scenario() -> None:
        role = new_role()
        async with serving(new_master()) as master:
            port = port_of(master.address)
            role.on_shard(led_by(master.address, 0, port))
            running = asyncio.create_task(role.run())
            await eventually(lambda: role.replica.connected, what="the slave follows")
            role.on_shard(led_by(master.address.replace("127.0.0.1", "localhost"), 2, port))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await eventually(running.done, what="the end of the role")
            assert running.cancelled()

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["a..b:10911", f"{'a' * 64}:10911", "\0:10911"])
def test_a_master_whose_address_is_no_name_is_tried_like_one_that_is_away(address: str) -> None:
    async def scenario() -> None:
        role = new_role()
        role.on_shard(led_by(address, 0, 1))
        running = asyncio.create_task(role.run())
        await eventually(lambda: role.replica.last_error is not None or running.done(), what="the error")
        assert not running.done()
        running.cancel()
        await asyncio.wait((running,))

    asyncio.run(scenario())


def test_work_that_must_not_be_left_is_waited_for_however_often_its_caller_is_cancelled() -> None:
    async def scenario() -> None:
        may_end, ended = asyncio.Event(), []

        async def work() -> None:
            await may_end.wait()
            ended.append(True)

        caller = asyncio.create_task(to_its_end(work()))
        for _ in range(3):
            await asyncio.sleep(0)
            caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
        may_end.set()
        await asyncio.wait((caller,))
        assert caller.cancelled()
        assert ended == [True]

    asyncio.run(scenario())
