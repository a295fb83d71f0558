"""Disks that do worse than fill up: a file cut short under the broker, a read-only file system, slow syncs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import grpc
import pytest

from penstock.proto.errors import PenstockError
from tests.crash.test_disk_full import MIB, in_own_loop, mounted
from tests.support.broker.running_broker import broker_process, calling
from tests.support.broker.slow_syncs import slow_syncs
from tests.support.client.traffic import create_topic, missing, read_all, writing
from tests.support.cluster.cluster import cluster, wait_replicated
from tests.support.waiting import wait_until

SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}
ENDS_S = 60.0


@in_own_loop
@pytest.mark.parametrize("first", ["append", "fetch"])
async def test_a_log_file_cut_short_under_the_broker_ends_it(tmp_path: Path, first: str) -> None:
    with broker_process(tmp_path / "broker", **SYNC_FLUSH) as broker:
        async with calling(broker.wait_ready()) as caller:
            await caller.create_topic()
            for _ in range(10):
                await caller.append([bytes(5000)])
            log_file = tmp_path / "broker/store/commitlog" / f"{0:020d}"
            os.truncate(log_file, 4096)
            with pytest.raises((PenstockError, grpc.RpcError, OSError)):  # it may have ended before: no answer
                await (caller.append([bytes(5000)]) if first == "append" else caller.fetch((0, 5), max_bytes=MIB))
        assert broker.process.wait(ENDS_S) == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in broker.log()
    with broker_process(tmp_path / "broker", **SYNC_FLUSH) as broker:
        assert broker.process.wait(60) not in (0, None)
        assert f"{log_file}: has 4096 bytes, log files of this store have {MIB}" in broker.log()
    assert log_file.stat().st_size == 4096, "nothing was mended by guessing"


def test_a_file_system_that_turns_read_only_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with mounted(tmp_path, "ext4", 32 * MIB) as point:
        settings = SYNC_FLUSH | {"storePathRootDir": str(point / "store")}
        trigger = _error_trigger(point)
        with broker_process(tmp_path / "broker", **settings) as broker:
            address = broker.wait_ready()
            create_topic(address)
            with writing(address) as writer:
                writer.wait_acknowledged(50)
                trigger.write_text("1")
                assert broker.process.wait(ENDS_S) > 0
                history = writer.stop()
            assert re.search(r" ERROR .*(Read-only|Input/output error|needs cleaning)", broker.log()), broker.log()
        _mend(tmp_path / "image", point)
        with broker_process(tmp_path / "broker", **settings) as broker:
            address = broker.wait_ready()
            assert missing(history, read_all(address)) == []
            assert broker.end() == 0


def _error_trigger(point: Path) -> Path:
    """What makes the file system there find an error, and so turn read-only."""
    subprocess.run(["mount", "-o", "remount,errors=remount-ro", str(point)], check=True)
    device = os.stat(point).st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel makes no file system errors on demand")
    return trigger


def _mend(image: Path, point: Path) -> None:
    """Check the file system, as after any error, and mount it again."""
    subprocess.run(["umount", str(point)], check=True)
    subprocess.run(["e2fsck", "-fy", str(image)], capture_output=True, check=False)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)


@in_own_loop
async def test_slow_syncs_delay_the_acknowledgement_and_nothing_else(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", **SYNC_FLUSH) as broker:
        async with calling(broker.wait_ready()) as caller:
            await caller.create_topic()
            await caller.append([b"first"])
            with slow_syncs(broker.process.pid, 2000):
                pending = asyncio.ensure_future(caller.append([b"second"]))
                done, _ = await asyncio.wait([pending], timeout=0.5)
                status = await caller.status()
                assert status.flushed_offset < status.max_offset, "it waits for the disk"
                reply, _ = await caller.fetch((0, 0), max_bytes=MIB)
                assert reply.results[0].next_offset == 1, "what is not synced is not read"
                assert not done, "acknowledged before the sync was over"
                assert not pending.done()
                await pending
            status = await caller.status()
            assert status.flushed_offset == status.max_offset
        assert broker.end() == 0


def test_a_slave_with_slow_syncs_slows_durable_sends_and_stays_in_sync(tmp_path: Path) -> None:
    with cluster(tmp_path, brokerRole="SYNC_MASTER", **SYNC_FLUSH) as shard:
        shard.start()
        master, slave = shard.broker("a", 0), shard.broker("a", 1)
        wait_until(lambda: [replica for replica in master.status().replicas if replica.in_sync], what="a slave in sync")
        create_topic(master.address)
        epoch = master.status().epoch
        with slow_syncs(slave.status().pid, 200), writing(master.address) as writer:
            writer.wait_acknowledged(20)
            history = writer.stop()
            durable = master.status().confirm_offset
            assert slave.status().flushed_offset >= durable, "acknowledged before the slave's disk had it"
        assert history.unknown == 0
        assert not history.refused
        assert master.status().epoch == epoch
        assert all(replica.in_sync for replica in master.status().replicas)
        wait_replicated(master, slave)
        assert missing(history, read_all(slave.address)) == []
