"""A broker process on a small file system that fills up: refusals, reads, commits, no SIGBUS, and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.proto.errors import DiskFull
from penstock.proto.wire import broker_pb2, common_pb2
from tests.support.broker.running_broker import Caller, broker_process, calling
from tests.support.loops import in_own_loop

MIB = 1 << 20
SMALL = {"cleanResourceInterval": 300, "flushDiskType": "SYNC_FLUSH"}
PHYSICAL = SMALL | {
    "diskSpaceWarningLevelRatio": 100,
    "diskSpaceCleanForciblyRatio": 98,
    "cleanFileForciblyEnable": "false",
}


@contextlib.contextmanager
def mounted(directory: Path, kind: str, size: int) -> Iterator[Path]:
    """A file system of ``size`` bytes; skips where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    point = directory / "disk"
    point.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
    else:
        image = directory / "image"
        with image.open("wb") as file:
            file.truncate(size)
        made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)], capture_output=True)
        if made.returncode != 0:
            pytest.skip(f"no ext4 can be made: {made.stderr.decode().strip()}")
        command = ["mount", "-o", "loop", str(image), str(point)]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def fill(path: Path, *, leave: int = 0) -> None:
    """Write until there is no space, then give ``leave`` bytes back."""
    with path.open("ab", buffering=0) as file:
        for block in (bytes(MIB // 4), bytes(4096), bytes(512)):
            with contextlib.suppress(OSError):
                while True:
                    file.write(block)
        if leave:
            file.truncate(max(0, file.tell() - leave))
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())


async def until_refused(caller: Caller, timeout_s: float = 30, because: str = "") -> int:
    """Append until the disk is full; how many batches were stored."""
    stored, deadline = 0, time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            await caller.append([bytes(50_000)])
        except DiskFull as error:
            if because in error.message:
                return stored
            await asyncio.sleep(0.05)
        else:
            stored += 1
    raise AssertionError(f"never refused, {stored} stored")


async def until_welcome(caller: Caller) -> None:
    """Append until it is taken."""
    while True:
        try:
            await caller.append([b"again"])
        except DiskFull:
            await asyncio.sleep(0.1)
        else:
            return


async def commit(caller: Caller, offset: int) -> None:
    offsets = [common_pb2.TopicOffsets(topic="orders", queue_ids=[0], offsets=[offset])]
    await caller.call("CommitOffsets", broker_pb2.CommitOffsetsRequest(group="billing", offsets=offsets))


async def committed(caller: Caller) -> int:
    part = common_pb2.TopicQueues(topic="orders", queue_ids=[0])
    reply = await caller.call("QueryOffsets", broker_pb2.QueryOffsetsRequest(group="billing", queues=[part]))
    return int(reply.offsets[0].offsets[0])


async def assert_reads(caller: Caller, count: int) -> None:
    """Every message can be read; the newest when dispatch has found space again."""
    offset = 0
    while offset < count:
        reply, data = await caller.fetch((0, offset), max_bytes=MIB)
        if len(data):
            offset = reply.results[0].next_offset
        else:
            await asyncio.sleep(0.1)


def log_files(point: Path) -> int:
    return len(list((point / "broker/store/commitlog").iterdir()))


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@in_own_loop
async def test_on_a_physically_full_disk_reads_and_commits_go_on(tmp_path: Path, kind: str) -> None:
    with mounted(tmp_path, kind, 24 * MIB) as point, broker_process(point / "broker", **PHYSICAL) as broker:
        address = await asyncio.to_thread(broker.wait_ready)
        async with calling(address) as caller:
            await caller.create_topic(queues=1)
            stored = 0
            for number in range(3):
                fill(point / "filler")
                stored += await until_refused(caller)
                files = log_files(point)
                fill(point / "filler")  # what the reserve gave, too
                for offset in range(20):
                    await commit(caller, number * 5 + offset // 4)
                    with pytest.raises(DiskFull):
                        await caller.append([bytes(50_000)])
                await assert_reads(caller, stored - 1)
                assert await committed(caller) == number * 5 + 4
                assert log_files(point) <= files, "refused appends leave no files behind"
                assert broker.process.poll() is None, broker.log()
                (point / "filler").unlink()
                await until_welcome(caller)
                stored += 1
            await assert_reads(caller, stored)
        assert await asyncio.to_thread(broker.end) == 0


@in_own_loop
async def test_offsets_committed_on_a_full_disk_survive_a_kill(tmp_path: Path) -> None:
    with mounted(tmp_path, "tmpfs", 24 * MIB) as point:
        with broker_process(point / "broker", **PHYSICAL) as broker:
            address = await asyncio.to_thread(broker.wait_ready)
            async with calling(address) as caller:
                await caller.create_topic(queues=1)
                fill(point / "filler")
                stored = await until_refused(caller)
                await commit(caller, stored - 1)
            broker.process.kill()
            await asyncio.to_thread(broker.process.wait)
        (point / "filler").unlink()
        with broker_process(point / "broker", **PHYSICAL) as broker:
            address = await asyncio.to_thread(broker.wait_ready)
            async with calling(address) as caller:
                assert await committed(caller) == stored - 1
                await assert_reads(caller, stored)
                await caller.append([b"more"])
            assert await asyncio.to_thread(broker.end) == 0


@in_own_loop
async def test_above_ninety_per_cent_messages_are_refused_and_at_eighty_five_welcome(tmp_path: Path) -> None:
    settings = SMALL | {"cleanFileForciblyEnable": "false"}
    with mounted(tmp_path, "tmpfs", 40 * MIB) as point, broker_process(point / "broker", **settings) as broker:
        address = await asyncio.to_thread(broker.wait_ready)
        async with calling(address) as caller:
            await caller.create_topic(queues=1)
            await caller.append([b"first"])
            fill(point / "filler", leave=3 * MIB)
            stored = 1 + await until_refused(caller, because="diskSpaceWarningLevelRatio=90")
            with pytest.raises(DiskFull):
                await caller.append([b"x"])
            await commit(caller, 1)
            await assert_reads(caller, stored)
            (point / "filler").unlink()
            await until_welcome(caller)
        assert await asyncio.to_thread(broker.end) == 0


@in_own_loop
async def test_with_forced_deletion_the_oldest_files_make_room(tmp_path: Path) -> None:
    settings = SMALL | {"cleanResourceInterval": 100}
    with mounted(tmp_path, "tmpfs", 16 * MIB) as point, broker_process(point / "broker", **settings) as broker:
        address = await asyncio.to_thread(broker.wait_ready)
        async with calling(address) as caller:
            await caller.create_topic(queues=1)
            refusals, written = 0, 0
            deadline = time.monotonic() + 60
            while written < 32 * MIB:  # twice the disk
                assert time.monotonic() < deadline, f"{written} written, {refusals} refused"
                try:
                    await caller.append([bytes(200_000)])
                    written += 200_000
                except DiskFull:
                    refusals += 1
                    await asyncio.sleep(0.05)
            status = await caller.status()
            assert status.min_offset > 16 * MIB
            reply, _ = await caller.fetch((0, 0))
            assert reply.results[0].status == broker_pb2.FetchReply.OFFSET_TOO_SMALL
            await assert_reads_from(caller, reply.results[0].next_offset, reply.results[0].max_offset)
        assert await asyncio.to_thread(broker.end) == 0


async def assert_reads_from(caller: Caller, offset: int, count: int) -> None:
    while offset < count:
        reply, data = await caller.fetch((0, offset), max_bytes=MIB)
        if reply.results[0].status == broker_pb2.FetchReply.OFFSET_TOO_SMALL:
            offset = reply.results[0].next_offset  # deleted meanwhile
            continue
        assert len(data), f"nothing at {offset} of {count}"
        offset = reply.results[0].next_offset
