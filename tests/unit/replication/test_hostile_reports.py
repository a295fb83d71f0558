"""Acknowledgements that cannot be true close the stream and release nothing; slow and failing slaves harm nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.proto.errors import DiskFull, InvalidArgument
from penstock.replication import ReplicationConfig, frames
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import following, hello_of, identity, new_master, raw_slave, serving
from tests.support.waiting import eventually

KIB = 1024
SYNC = ReplicationConfig(
    sync=True,
    in_sync_replicas=2,
    heartbeat_interval_ms=20,
    replica_timeout_ms=300,
    frame_bytes=4 * KIB,
    window_bytes=30_000,
)


def greeting(broker_id: int = 1) -> bytes:
    return hello_of(identity(broker_id), end_offset=0, store_instance="raw")


LIES: list[tuple[str, list[bytes], str]] = [
    ("beyond what was sent", [frames.ack(1, 1001, 0)], "acknowledged 1001, only 1000 was sent"),
    ("far beyond", [frames.ack(1, (1 << 63) - 1, 0)], "only 1000 was sent"),
    ("synced beyond written", [frames.ack(1, 10, 11)], "11 as synced and only 10"),
    ("written going back", [frames.ack(1, 0, 0), frames.ack(1, 500, 0), frames.ack(1, 499, 0)], "went back"),
    ("synced going back", [frames.ack(1, 500, 400), frames.ack(1, 600, 399)], "went back"),
    ("of a later epoch", [frames.ack(2, 1000, 1000)], "epoch 2"),
    ("of an older epoch", [frames.ack(0, 1000, 1000)], "epoch 0"),
    ("negative", [frames.ack(1, -1, 0)], "negative"),
    ("a second hello", [greeting()], "second hello"),
    ("noise", [b"\xff" * 100], "frame"),
]


@pytest.mark.parametrize(("what", "messages", "words"), LIES, ids=[case[0] for case in LIES])
def test_an_impossible_report_ends_the_stream_and_releases_nothing(
    what: str, messages: list[bytes], words: str
) -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.write(bytes(1000))
        async with serving(new_master(log, SYNC)) as master, raw_slave(master.address) as slave:
            await slave.send(greeting())
            await slave.receive_until(lambda frame: frame.start + len(frame.data) == 1000)
            truthful = 0
            for message in messages[:-1]:
                await slave.send(message)
                report = frames.decode_report(message)
                assert isinstance(report, frames.Ack)
                truthful = max(truthful, report.written_offset)
            await eventually(lambda: master.primary.confirm_offset == truthful)
            waiter = asyncio.create_task(master.primary.wait_confirmed(1000, 0.2))
            await slave.send(messages[-1])
            with pytest.raises(InvalidArgument, match=words):
                await slave.receive_many(500)  # heartbeats, of ten seconds
            assert not await waiter
            assert master.primary.confirm_offset == truthful
            assert not master.primary.can_acknowledge()
            assert words in master.primary.replicas()[0].left_because

    asyncio.run(scenario())


def test_a_slave_that_never_acknowledges_gets_one_window_and_then_heartbeats() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        log.write(bytes(200_000))
        async with serving(new_master(log, SYNC)) as master, raw_slave(master.address) as slave:
            await slave.send(greeting())
            await slave.receive_until(lambda frame: frame.start == SYNC.window_bytes and not len(frame.data))
            [replica] = master.primary.replicas()
            assert replica.sent == replica.in_flight == SYNC.window_bytes
            await slave.send(frames.ack(1, 4096, 0))
            frame = await slave.receive_until(lambda frame: len(frame.data) > 0)
            assert (frame.start, len(frame.data)) == (SYNC.window_bytes, 4096)

    asyncio.run(scenario())


def test_room_in_the_window_is_used_at_once() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(
            heartbeat_interval_ms=30_000, master_timeout_ms=60_000, frame_bytes=4 * KIB, window_bytes=4 * KIB
        )
        log = MemoryLog()
        log.write(bytes(8 * KIB))
        async with serving(new_master(log, config)) as master, raw_slave(master.address) as slave:
            await slave.send(greeting())
            await slave.receive_until(lambda frame: len(frame.data) == 4 * KIB)
            await asyncio.sleep(0.05)  # the sender has gone to sleep: nothing tells so from outside
            await slave.send(frames.ack(1, 4 * KIB, 0))
            assert (await slave.receive()).start == 4 * KIB

    asyncio.run(scenario())


def test_a_stalled_slave_holds_a_window_and_stalls_nobody() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(sync=True, heartbeat_interval_ms=20, replica_timeout_ms=300, window_bytes=1 << 20)
        async with (
            serving(new_master(config=config)) as master,
            following(master.address, 2) as healthy,
            raw_slave(master.address) as stalled,
        ):
            await stalled.send(greeting(1))
            await stalled.receive()  # the welcome, and then it reads no more
            for _ in range(64):
                end = master.append(bytes(256 * KIB))
                assert await master.primary.wait_confirmed(end, 10)
            await eventually(lambda: healthy.log.end_offset == master.log.end_offset)
            first, second = master.primary.replicas()
            assert first.in_flight <= config.window_bytes
            await eventually(lambda: not master.primary.replicas()[0].in_sync, what="the stalled slave was noticed")
            assert second.in_sync

    asyncio.run(scenario())


def test_a_slave_that_answers_but_does_not_move_falls_out_of_sync() -> None:
    async def scenario() -> None:
        async with serving(new_master(config=SYNC)) as master, raw_slave(master.address) as slave:
            await slave.send(greeting())
            await slave.receive()
            await slave.send(frames.ack(1, 0, 0))
            await eventually(master.primary.can_acknowledge, what="level with an empty log")
            master.append(bytes(1000))
            assert master.primary.can_acknowledge(), "it has time to follow"

            async def keep_answering() -> None:
                while True:
                    await slave.receive()
                    await slave.send(frames.ack(1, 500, 0))

            answering = asyncio.create_task(keep_answering())
            await eventually(lambda: not master.primary.can_acknowledge())
            [replica] = master.primary.replicas()
            assert replica.connected
            assert replica.written == 500
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    asyncio.run(scenario())


def test_a_slave_with_a_full_disk_leaves_by_name_and_returns_when_there_is_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        copy = MemoryLog(64 * KIB)
        copy.capacity = 100_000
        config = ReplicationConfig(reconnect_max_ms=100)
        master = new_master(MemoryLog(64 * KIB), SYNC)
        async with serving(master), following(master.address, log=copy, config=config) as slave:
            await eventually(master.primary.can_acknowledge)
            master.append(bytes(200_000))
            await eventually(lambda: "DiskFull" in "".join(r.left_because for r in master.primary.replicas()))
            assert isinstance(slave.replica.last_error, DiskFull) or slave.replica.last_error is None
            assert not await master.primary.wait_confirmed(200_000, 0.01)
            assert "DiskFull" in caplog.text
            await eventually(lambda: caplog.text.count("slave connected") > 3)
            assert caplog.text.count("slave cannot append") == 1, "told once, however often it is tried"
            copy.capacity = None
            assert await master.primary.wait_confirmed(200_000, 10)
            assert copy.content() == master.log.content()

    asyncio.run(scenario())


def test_commits_that_the_master_cannot_take_do_not_stop_replication() -> None:
    async def scenario() -> None:
        def refuse(_: Any) -> None:
            raise DiskFull("no space")

        async with serving(new_master(config=SYNC, on_commits=refuse)) as master, following(master.address) as slave:
            slave.pending.append(frames.Commits(group="g"))
            await eventually(master.primary.can_acknowledge)
            end = master.append(bytes(1000))
            assert await master.primary.wait_confirmed(end, 5)

    asyncio.run(scenario())


def test_closing_lets_streams_and_waiters_go() -> None:
    async def scenario() -> None:
        async with serving(new_master(config=SYNC)) as master, following(master.address) as slave:
            await eventually(lambda: slave.replica.connected)
            waiter = asyncio.create_task(master.primary.wait_confirmed(10, 60))
            await asyncio.sleep(0)
            master.primary.close()
            assert not await waiter
            assert not await master.primary.wait_confirmed(10, 60)
            await eventually(lambda: "closing" in str(slave.replica.last_error))

    asyncio.run(scenario())
