"""Learners, throttled slaves and slow ones: what each gets, and what it costs."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replication import ReplicationConfig, frames
from penstock.replication.master.progress import Progress
from penstock.replication.master.shipping import SlaveStream
from penstock.replication.master.throttle import Throttle
from penstock.runtime.clock import SystemClock
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import Pipe, following, new_master, serving
from tests.support.waiting import eventually

KIB = 1024
SYNC = ReplicationConfig(sync=True, heartbeat_interval_ms=20, confirm_interval_ms=0)
LEARNER = ReplicationConfig(learner=True)


@given(st.integers(1, 10**9), st.integers(1, 10**7), st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 2))))
def test_a_throttle_lets_pass_its_rate_and_one_burst_at_most(
    rate: int, burst: int, wishes: list[tuple[int, float]]
) -> None:
    now, passed = 100.0, 0
    throttle = Throttle(rate, burst, now)
    for size, pause in wishes:
        now += pause
        wanted = min(size, burst)
        now += throttle.wait_s(wanted, now)
        assert throttle.wait_s(wanted, now) <= 1e-6, "the time that it names is enough"
        throttle.take(wanted)
        passed += wanted
        assert passed <= burst + rate * (now - 100.0) * 1.000001 + 1


def test_without_a_limit_nothing_waits() -> None:
    throttle = Throttle(0, 1, 0.0)
    assert throttle.wait_s(1 << 40, 0.0) == 0.0


@pytest.mark.parametrize(("limit", "least", "most"), [(0, 8000, 8000), (100, 900, 1100)])
def test_a_stream_keeps_to_the_limit_and_sends_whole_frames(limit: int, least: int, most: int) -> None:
    """80 frames of 100 KiB wait; ten seconds pass in steps of a millisecond."""
    config = ReplicationConfig(
        frame_bytes=100 * KIB, window_bytes=1 << 30, transfer_bytes_per_s_max=limit * KIB, heartbeat_interval_ms=200
    )
    log = MemoryLog(16 << 20)
    log.write(bytes(8000 * KIB))
    table = Progress(config, end=log.end_offset, flushed=0, confirm=0)
    replica = table.connect(1, "somewhere", 0, 0.0)
    primary = new_master(log).primary
    stream = SlaveStream(
        replica,
        "a",
        b"",
        primary,
        Pipe(primary, lambda _, message: [message]),
        log=log,
        table=table,
        config=config,
        epoch=1,
        clock=SystemClock(),
    )
    stream._throttle = Throttle(limit * KIB, config.frame_bytes, 0.0)
    stream._last_frame_at = 0.0
    heartbeats = 0
    for millisecond in range(10_000):
        while (message := stream._next(millisecond / 1000)) is not None:
            stream._last_frame_at = millisecond / 1000
            size = len(frames.decode_frame(b"".join(message)).data)
            assert size in (0, config.frame_bytes)
            heartbeats += size == 0
            if size == 0:
                break
    assert least * KIB <= replica.sent <= most * KIB
    assert heartbeats >= 40, "a throttled slave hears that its master lives"


def test_a_throttled_slave_gets_everything_in_time() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(
            sync=True, frame_bytes=4 * KIB, window_bytes=64 * KIB, transfer_bytes_per_s_max=2000 * KIB
        )
        log = MemoryLog()
        log.write(bytes(200 * KIB))
        async with serving(new_master(log, config)) as master, following(master.address) as slave:
            await eventually(lambda: slave.log.end_offset == log.end_offset, what="the slave is level")
            assert slave.log.content() == log.content()

    asyncio.run(scenario())


def test_a_learner_gets_every_byte_and_counts_for_nothing() -> None:
    async def scenario() -> None:
        async with serving(new_master(config=SYNC)) as master, following(master.address, 1, config=LEARNER) as learner:
            end = master.append(b"bytes" * 100)
            await eventually(lambda: learner.log.end_offset == end, what="the learner is level")
            await eventually(lambda: master.primary.replicas()[0].written == end, what="its acknowledgement")
            assert master.primary.replicas()[0].learner
            assert not master.primary.can_acknowledge()
            assert master.primary.confirm_offset == 0
            async with following(master.address, 2) as slave:
                await eventually(lambda: master.primary.confirm_offset == end, what="a slave that counts")
                await eventually(lambda: slave.replica.confirm_offset == end == learner.replica.confirm_offset)

    asyncio.run(scenario())


def test_a_slow_slave_neither_delays_a_fast_one_nor_costs_messages() -> None:
    """20,000 appends of a message each: the frames are as many as the bytes need, not as the messages are."""

    async def scenario() -> None:
        config = ReplicationConfig(sync=True, heartbeat_interval_ms=50, window_bytes=1 << 20)
        master = new_master(MemoryLog(16 << 20), config)
        made = 0
        original = frames.data

        def counted(*values: object, **more: object) -> bytes:
            nonlocal made
            made += 1
            return original(*values, **more)  # type: ignore[arg-type]

        slow = MemoryLog(16 << 20)
        slow.hold_flushes = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "data", counted)
            async with (
                serving(master),
                following(master.address, 1, MemoryLog(16 << 20)) as fast,
                following(master.address, 2, slow),
            ):
                await eventually(lambda: len(master.primary.replicas()) == 2)
                for _ in range(20):
                    for _ in range(1000):
                        master.append(b"a message of its own")
                    assert await master.primary.wait_confirmed(master.log.end_offset, 10)
                await eventually(lambda: fast.log.end_offset == slow.end_offset == master.log.end_offset)
        assert made < 2000, f"{made} frames for two slaves and 20,000 appends"

    asyncio.run(scenario())
