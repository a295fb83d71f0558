"""Connections of slaves to a master's data port: one stream each, who is silent, and who takes nothing."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.group.roles import SlaveRole
from penstock.formats.epochs import Epoch
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument
from penstock.proto.wire.common_pb2 import MASTER
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView
from penstock.replication import EpochHistory, EpochsInMemory, Replica, ReplicationConfig, frames
from penstock.replication.master import shipping
from penstock.replication.slave import replica
from penstock.runtime.data.peer import DataPeer, connect
from tests.support.loops import in_own_loop
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import following, hello_of, identity, new_master, port_of, raw_slave, serving
from tests.support.waiting import eventually

QUICK = ReplicationConfig(heartbeat_interval_ms=20)


def greeting(broker_id: int = 1) -> bytes:
    return hello_of(identity(broker_id), end_offset=0, store_instance="raw")


async def until_it_ends(peer: DataPeer) -> None:
    while True:
        await peer.receive()


@in_own_loop
async def test_a_connection_has_one_stream() -> None:
    async with serving(new_master(config=QUICK)) as master:
        peer = await connect(master.address, port_of(master.address))
        await peer.send(7, Method.REPLICATE, greeting())
        assert (await peer.receive()).number == 7
        await peer.send(8, Method.REPLICATE, greeting(2))
        with pytest.raises(InvalidArgument, match="REPLICATE 7 stands"):
            await until_it_ends(peer)
        assert [each.broker_id for each in master.primary.replicas() if each.connected] == [1]
        peer.close()


@in_own_loop
async def test_a_slave_that_is_refused_may_try_again_over_the_same_connection() -> None:
    async with serving(new_master(config=QUICK)) as master, raw_slave(master.address) as slave:
        await slave.send(frames.ack(1, 0, 0))
        with pytest.raises(InvalidArgument, match="first report must be a hello"):
            await slave.receive()
        await slave.send(greeting())
        assert (await slave.receive()).welcome is not None


@in_own_loop
async def test_a_slave_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is frozen, or the way to it is cut off."""
    monkeypatch.setattr(shipping, "SILENCE_S", 0.2)
    async with serving(new_master(config=QUICK)) as master, raw_slave(master.address) as slave:
        await slave.send(greeting())
        with pytest.raises(BrokerUnavailable, match="nothing was heard"):
            await slave.receive_until(lambda _: False)
        [left] = master.primary.replicas()
        assert not left.connected
        assert "nothing was heard" in left.left_because


@in_own_loop
async def test_a_slave_whose_log_is_being_cut_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    silence_s = 0.3
    monkeypatch.setattr(shipping, "SILENCE_S", silence_s)
    monkeypatch.setattr(replica, "PING_S", 0.05)
    log, copy = MemoryLog(), MemoryLog()
    log.write(b"common" + b"new")
    copy.write(b"common" + b"old and longer")
    copy.confirm_offset = 6
    cutting, may_go_on = asyncio.Event(), asyncio.Event()
    truncate_to = copy.truncate_to

    async def slow(offset: int) -> None:
        cutting.set()
        await may_go_on.wait()
        await truncate_to(offset)

    copy.truncate_to = slow  # type: ignore[method-assign]
    epochs = EpochHistory([Epoch(1, 0), Epoch(2, 6)])
    own = EpochsInMemory(EpochHistory([Epoch(1, 0)]))
    master = new_master(log, QUICK, epoch=2, epochs=epochs)
    time = asyncio.get_running_loop().time
    async with serving(master), following(master.address, log=copy, epochs=own, config=QUICK) as slave:
        await cutting.wait()
        began = time()
        await eventually(lambda: time() - began > 2 * silence_s)
        assert [each.connected for each in master.primary.replicas()] == [True]
        may_go_on.set()
        await eventually(lambda: slave.replica.connected and copy.content() == log.content())
        assert slave.replica.last_error is None


@in_own_loop
async def test_what_an_ended_stream_has_not_sent_is_sent_no_more() -> None:
    """The log that it shows may be cut then: its bytes are another master's from there on."""
    config = ReplicationConfig(heartbeat_interval_ms=20, window_bytes=64 << 20)
    log = MemoryLog(64 << 20)
    log.write(b"x" * (40 << 20))
    async with serving(new_master(log, config)) as master:
        peer = await connect(master.address, port_of(master.address))
        peer._transport.pause_reading()
        await peer.send(1, Method.REPLICATE, greeting())
        await eventually(lambda: any(not each._is_taken for each in master.primary._streams.values()))
        master.primary.close()
        peer._transport.resume_reading()
        with pytest.raises(BrokerUnavailable) as ended:  # and not because the master is closing, in its own words
            await until_it_ends(peer)
        assert "closing" not in str(ended.value)
        peer.close()


@in_own_loop
async def test_a_master_that_comes_back_at_another_port_is_followed_there() -> None:
    copy = MemoryLog()
    follower = Replica(
        identity(1), copy, config=QUICK, on_appended=lambda: None, on_confirm=lambda offset: None, pending_commits=list
    )
    role = SlaveRole(identity(1), follower, EpochsInMemory())
    master = new_master(config=QUICK)
    running = asyncio.create_task(role.run())
    for size in (10, 20):
        async with serving(master):
            port = port_of(master.address)
            told = ShardMember(broker_id=0, address="127.0.0.1:10911", role=MASTER, data_port=port)
            role.on_shard(ShardView(members=[told]))
            master.append(bytes(10))
            await eventually(lambda size=size: copy.end_offset == size)  # type: ignore[misc]
        master = new_master(master.log, QUICK)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
