"""Master and slave over real gRPC, logs in memory."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from penstock.proto.wire import common_pb2
from penstock.replication import ReplicationConfig, frames
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import following, new_master, serving
from tests.support.waiting import eventually

KIB = 1024
QUICK = ReplicationConfig(
    frame_bytes=4 * KIB, window_bytes=32 * KIB, heartbeat_interval_ms=20, master_timeout_ms=500, reconnect_max_ms=100
)
SYNC = ReplicationConfig(sync=True, in_sync_replicas=2, heartbeat_interval_ms=20, replica_timeout_ms=500)


def some_bytes(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


def test_a_slave_that_starts_empty_gets_everything_from_the_masters_minimum() -> None:
    async def scenario() -> None:
        log = MemoryLog(64 * KIB)
        log.write(some_bytes(300_000))
        log.drop_before(128 * KIB)
        async with (
            serving(new_master(log, QUICK)) as master,
            following(master.address, log=MemoryLog(64 * KIB)) as slave,
        ):
            await eventually(lambda: slave.log.end_offset == log.end_offset, what="the slave is level")
            assert slave.log.min_offset == 128 * KIB
            assert slave.log.content() == log.content()
            await eventually(lambda: slave.confirms[-1:] == [log.end_offset], what="the confirm offset arrived")
            assert slave.replica.connected
            assert slave.replica.lag_bytes == 0

    asyncio.run(scenario())


def test_a_slave_catches_up_while_the_log_grows() -> None:
    async def scenario() -> None:
        log = MemoryLog(256 * KIB)
        log.write(some_bytes(1_000_000))
        async with (
            serving(new_master(log, QUICK)) as master,
            following(master.address, log=MemoryLog(256 * KIB)) as slave,
        ):
            for turn in range(200):
                master.append(some_bytes(5_000, turn))
                await asyncio.sleep(0)
            await eventually(lambda: slave.log.end_offset == log.end_offset, what="the slave is level")
            assert slave.log.content() == log.content()

    asyncio.run(scenario())


def test_a_slave_that_comes_back_goes_on_where_its_log_ends() -> None:
    async def scenario() -> None:
        async with serving(new_master(config=QUICK)) as master:
            copy = MemoryLog()
            master.append(some_bytes(50_000))
            async with following(master.address, log=copy):
                await eventually(lambda: copy.end_offset == 50_000)
            master.append(some_bytes(70_000, 2))
            async with following(master.address, log=copy):
                await eventually(lambda: copy.end_offset == 120_000)
            assert copy.content() == master.log.content()

    asyncio.run(scenario())


def test_a_slave_finds_a_restarted_master_again() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        async with serving(new_master(log, QUICK)) as master:
            port = int(master.address.rpartition(":")[2])
            follower = following(master.address, config=QUICK)
            slave = await follower.__aenter__()
            try:
                master.append(some_bytes(1000))
                await eventually(lambda: slave.log.end_offset == 1000)
            finally:
                master.primary.close()
        await eventually(lambda: not slave.replica.connected, what="the slave noticed")
        async with serving(new_master(log, QUICK), port) as master:
            master.append(some_bytes(1000, 2))
            await eventually(lambda: slave.log.end_offset == 2000, what="the slave follows again")
            assert slave.log.content() == log.content()
            await follower.__aexit__(None, None, None)

    asyncio.run(scenario())


@pytest.mark.parametrize("flush_acknowledged", [False, True])
def test_synchronous_confirms_exactly_what_a_slave_has(flush_acknowledged: bool) -> None:
    async def scenario() -> None:
        config = ReplicationConfig(
            sync=True, flush_acknowledged=flush_acknowledged, heartbeat_interval_ms=20, replica_timeout_ms=500
        )
        async with serving(new_master(config=config)) as master:
            end = master.append(b"before any slave")
            master.log.flush()
            assert master.primary.confirm_offset == 0
            assert not master.primary.can_acknowledge()
            assert not await master.primary.wait_confirmed(end, 0.01)
            copy = MemoryLog()
            copy.hold_flushes = True
            async with following(master.address, log=copy) as slave:
                await eventually(lambda: copy.end_offset == end)
                if flush_acknowledged:
                    await eventually(lambda: master.primary.replicas()[0].written == end)
                    assert master.primary.confirm_offset == 0, "written is not enough"
                    copy.flush()
                assert await master.primary.wait_confirmed(end, 5)
                assert master.primary.can_acknowledge()
                await eventually(lambda: slave.confirms == [end], what="the slave heard the confirm offset")
                assert master.confirms == [end]

    asyncio.run(scenario())


def test_a_slave_that_syncs_has_what_it_has_synced_whatever_its_master_counts_of_others() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(sync=True, heartbeat_interval_ms=20, replica_timeout_ms=500)
        async with serving(new_master(config=config)) as master:
            copy = MemoryLog()
            copy.hold_flushes = True
            syncing = replace(config, flush_acknowledged=True)
            async with following(master.address, log=copy, config=syncing):
                end = master.append(b"not synced there")
                await eventually(lambda: [each.written for each in master.primary.replicas()] == [end])
                assert master.primary.confirm_offset == 0, "after a loss of power it would not say that it lacks this"
                copy.flush()
                assert await master.primary.wait_confirmed(end, 20)

    asyncio.run(scenario())


@pytest.mark.parametrize("sync", [False, True])
def test_bytes_acknowledgements_and_confirm_offsets_wait_for_no_heartbeat(sync: bool) -> None:
    async def scenario() -> None:
        seldom = ReplicationConfig(
            sync=sync, heartbeat_interval_ms=30_000, master_timeout_ms=60_000, frame_bytes=KIB, window_bytes=4 * KIB
        )
        async with (
            serving(new_master(config=seldom)) as master,
            following(master.address, config=seldom) as slave,
        ):
            await eventually(lambda: slave.replica.connected)
            for _ in range(5):
                end = master.append(some_bytes(20 * KIB))  # several windows
                assert await master.primary.wait_confirmed(end, 20)
                await eventually(lambda end=end: slave.confirms[-1:] == [end], 20)  # type: ignore[misc]

    asyncio.run(scenario())


def test_waiters_are_answered_in_order_without_polling() -> None:
    async def scenario() -> None:
        async with serving(new_master(config=SYNC)) as master, following(master.address):
            await eventually(master.primary.can_acknowledge)
            answered: list[int] = []

            async def send(size: int) -> None:
                end = master.append(bytes(size))
                assert await master.primary.wait_confirmed(end, 5)
                answered.append(end)

            await asyncio.gather(*(send(10) for _ in range(100)))
            assert answered == list(range(10, 1010, 10))

    asyncio.run(scenario())


def test_without_slaves_asynchronous_confirms_what_the_master_has() -> None:
    async def scenario() -> None:
        master = new_master()
        end = master.append(b"abc")
        assert master.primary.confirm_offset == end == 3
        assert await master.primary.wait_confirmed(end, 0)
        flushing = new_master(config=ReplicationConfig(flush_acknowledged=True))
        end = flushing.append(b"abc")
        assert flushing.primary.confirm_offset == 0
        flushing.log.flush()
        assert flushing.primary.confirm_offset == end
        assert flushing.primary.can_acknowledge()

    asyncio.run(scenario())


def test_a_restarted_master_shows_the_checkpointed_confirm_at_first() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.write(some_bytes(1000))
        copy = MemoryLog()
        copy.write(some_bytes(1000))
        async with serving(new_master(log, SYNC, initial_confirm=400)) as master:
            assert master.primary.confirm_offset == 400
            assert master.confirms == [400]
            async with following(master.address, log=copy):
                await eventually(lambda: master.primary.confirm_offset == 1000, what="the slave's report counts")

    asyncio.run(scenario())


def test_a_master_that_stops_answering_is_gone_within_the_time_out() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(heartbeat_interval_ms=400_000, master_timeout_ms=3_600_000)
        async with (
            serving(new_master(config=config)) as master,  # welcomes and then says nothing
            following(master.address, config=QUICK) as slave,
        ):
            await eventually(lambda: slave.replica.connected)
            await eventually(lambda: not slave.replica.connected, what="silence was noticed")
            await eventually(lambda: "nothing heard" in str(slave.replica.last_error), what="and is named")

    asyncio.run(scenario())


def test_an_idle_stream_carries_little_more_than_heartbeats() -> None:
    async def scenario() -> None:
        master = new_master(config=ReplicationConfig(heartbeat_interval_ms=100))
        sent = 0

        async with serving(master), following(master.address) as slave:
            original = slave.replica._hear

            def count(*args: object) -> None:
                nonlocal sent
                sent += 1
                original(*args)  # type: ignore[arg-type]

            slave.replica._hear = count  # type: ignore[method-assign,assignment]
            await eventually(lambda: sent >= 2)
            sent, started = 0, asyncio.get_running_loop().time()
            await eventually(lambda: sent >= 5)
            assert asyncio.get_running_loop().time() - started >= 0.3

    asyncio.run(scenario())


def test_commits_made_at_the_slave_reach_the_master_again_and_again_until_withdrawn() -> None:
    async def scenario() -> None:
        async with serving(new_master(config=QUICK)) as master, following(master.address) as slave:
            offsets = [common_pb2.TopicOffsets(topic="orders", queue_ids=[0, 1], offsets=[7, 9])]
            slave.pending.append(frames.Commits(group="billing", offsets=offsets))
            await eventually(lambda: len(master.commits) >= 2, what="the commits came, and came again")
            assert master.commits[0] == slave.pending[0]
            slave.pending.clear()
            await eventually(lambda: slave.replica.connected)

    asyncio.run(scenario())


def test_several_slaves_each_get_the_log_and_the_slowest_needed_one_decides() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(sync=True, in_sync_replicas=3, heartbeat_interval_ms=20)
        async with serving(new_master(config=config)) as master, following(master.address, 1) as one:
            end = master.append(some_bytes(1000))
            await eventually(lambda: one.log.end_offset == end)
            assert not master.primary.can_acknowledge()
            assert master.primary.confirm_offset == 0
            async with following(master.address, 2) as two:
                assert await master.primary.wait_confirmed(end, 5)
                assert one.log.content() == two.log.content() == master.log.content()
                assert [replica.broker_id for replica in master.primary.replicas()] == [1, 2]

    asyncio.run(scenario())
