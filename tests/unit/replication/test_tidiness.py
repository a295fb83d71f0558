"""What replication leaves behind: no tasks, no waiters, no floods of log lines."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from penstock.replication import ReplicationConfig
from penstock.replication.master.waiters import OffsetWaiters
from penstock.replication.notices import Notices
from penstock.replication.slave.replica import backoff_s
from tests.support.clock import ManualClock
from tests.support.replication.replicating import following, hello_of, identity, new_master, raw_slave, serving
from tests.support.waiting import eventually


def test_streams_that_broke_leave_no_tasks_behind() -> None:
    async def scenario() -> None:
        config = ReplicationConfig(heartbeat_interval_ms=20)
        async with serving(new_master(config=config)) as master:
            master.append(bytes(1 << 20))
            before = len(asyncio.all_tasks())
            for turn in range(10):
                async with following(master.address, 1) as slave:
                    await eventually(lambda slave=slave: slave.replica.connected)  # type: ignore[misc]
                async with raw_slave(master.address) as stalled:  # never reads: its stream is stuck in a write
                    hello = hello_of(identity(2), end_offset=0, store_instance=f"{turn}")
                    await stalled.send(hello)
                    await eventually(lambda: any(r.sent for r in master.primary.replicas() if r.broker_id == 2))
            await eventually(lambda: not any(r.connected for r in master.primary.replicas()), what="all are gone")
            gc.collect()
            await eventually(lambda: len(asyncio.all_tasks()) <= before, what="no task is left")

    asyncio.run(scenario())


def test_waiters_that_timed_out_do_not_pile_up() -> None:
    async def scenario() -> None:
        waiters = OffsetWaiters()
        for turn in range(200):
            assert not await waiters.wait(turn, 0.0005)
        assert len(waiters) <= 2
        patient = asyncio.create_task(waiters.wait(1000, 10))
        await asyncio.sleep(0)
        waiters.on_reached(999)
        await asyncio.sleep(0)
        assert not patient.done()
        waiters.on_reached(1000)
        assert await patient
        assert len(waiters) == 0

    asyncio.run(scenario())


def test_reconnections_slow_down_to_a_ceiling_and_are_spread() -> None:
    config = ReplicationConfig(reconnect_min_ms=50, reconnect_max_ms=1000)
    assert backoff_s(0, config, 0.999) == 0.05
    assert [round(backoff_s(attempt, config, 1.0), 3) for attempt in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff_s(10_000, config, 0.0) == 0.05
    assert 0.05 < backoff_s(5, config, 0.5) < 1.0


def test_a_repeated_notice_is_said_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    notices = Notices(logging.getLogger("notices"), clock, interval_s=30)
    for _ in range(5):
        notices.warn("key", "slave left", written=7)
    notices.warn("other", "slave left")
    clock.advance(31)
    notices.warn("key", "slave left", written=8)
    notices.warn("key", "slave refused")
    assert caplog.messages == [
        "slave left written=7",
        "slave left",
        "slave left written=8 repeats=4",
        "slave refused",
    ]
