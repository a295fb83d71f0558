"""Power cuts on a mounted file system, one after the other, under a store that is written to.

``python -m tests.support.crash.power_cuts ext4 DIRECTORY CUTS SEED``; exits with 1, and says why, when anything that
was acknowledged is missing, or anything that was missing is back. A child process appends with SYNC_FLUSH and writes
the number of each acknowledged batch to a pipe; after a random time the file system is shut down without its journal,
the child killed, the file system mounted again, and the store opened and read. Before some cuts random pages of the
newest log file are written out, so that pages reach the disk out of order.

This process has no threads and does all work with stores in forked children: a fork is much cheaper than a start.
"""

from __future__ import annotations

import errno
import json
import logging
import mmap
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.core.tables.tables import Tables
from penstock.broker.store import FlushMode, Store, StoreConfig
from penstock.inspection import list_store, verify
from penstock.proto.errors import StorageError
from tests.support.broker.stores import HOST, batch, read
from tests.support.crash.loop_mount import LoopMount

TOPICS, QUEUES = ("orders", "clicks"), 3
GROUP = "billing"
SEGMENT_BYTES = 1 << 20
CUTS_PER_FILE_SYSTEM = 25
VERIFIED_EVERY = 10
_PAGE = 4096


def config(root: Path) -> StoreConfig:
    """Files that roll often, checkpoints many times a second."""
    return StoreConfig(
        root=root,
        segment_bytes=SEGMENT_BYTES,
        consume_queue_bytes=400 * 20,
        flush_mode=FlushMode.SYNC_FLUSH,
        flush_thorough_interval_ms=20,
        store_host=HOST,
        index_slots=1000,
        index_entries=4000,
    )


def texts_of(number: int) -> list[bytes]:
    """The bodies of a batch; nobody else writes such."""
    chooser = random.Random(number)
    size = chooser.choice((40, 40, 1000, 1000, 20_000))
    count = chooser.choice((1, 1, 4)) if size < 20_000 else 1
    head = [b"%010d/%d/%d/" % (number, part, count) for part in range(count)]
    return [(one * (size // len(one) + 1))[:size] for one in head]


def queue_of(number: int) -> tuple[str, int]:
    """Where a batch goes."""
    return TOPICS[number % 2], number // 2 % QUEUES


def produce(root: Path, first: int, out: int) -> None:
    """Append batches until killed; the number of each to ``out`` when it is synced."""
    store = Store.open(config(root))
    flushed = threading.Event()
    store.on_flushed = lambda _: flushed.set()
    store.on_fatal = lambda _: os._exit(3)
    snapshots, tables = _snapshots(root)
    snapshots.load(0, store.dispatched_offset, log_has_all=False)
    pending: list[tuple[int, int]] = []
    number, chooser = first, random.Random(first)
    while True:
        for _ in range(chooser.choice((1, 1, 3, 10))):
            texts = texts_of(number)
            topic, queue_id = queue_of(number)
            keys = [b"KEYS\x01n%d\x02" % number] * len(texts)
            mark = (7, 0, 0, number) if len(texts) > 1 else None
            store.append(topic, batch(topic, texts, queue_id, properties=keys, mark=mark), queues=QUEUES)
            pending.append((number, store.end_offset))
            number += 1
        flushed.clear()
        store.request_flush(store.end_offset)
        while store.flushed_offset < pending[0][1]:
            flushed.wait(0.001)
            flushed.clear()
        done = [one for one, end in pending if end <= store.flushed_offset]
        os.write(out, b"".join(b"%d\n" % one for one in done))
        pending = pending[len(done) :]
        store.set_confirm(store.flushed_offset)
        store.dispatch()
        if done and chooser.random() < 0.1:
            tables.offsets.put(store.dispatched_offset, GROUP, TOPICS[0], {0: done[-1]})
            snapshots.write_all(store.dispatched_offset)
            os.write(out, b"%d s\n" % done[-1])


def _snapshots(root: Path) -> tuple[Snapshots, Tables]:
    tables = Tables()
    return Snapshots(root / "config", tables), tables


def examine(root: Path, out: int, *, thoroughly: bool) -> None:
    """Open the store and tell which batches it holds, to ``out`` in JSON; any doubt is an exception."""
    store = Store.open(config(root))
    parts: dict[int, set[int]] = {}
    for topic in TOPICS:
        for queue_id in range(QUEUES):
            before = -1
            records = read(store, topic, queue_id, max_bytes=1 << 20)
            assert [one.queue_offset for one in records] == list(range(len(records))), "queue offsets have a gap"
            for record in records:
                number, part = (int(text) for text in record.body.split(b"/")[:2])
                assert record.body == texts_of(number)[part], f"another body at {record.physical_offset}"
                assert (record.topic, record.queue_id) == queue_of(number)
                assert part not in parts.setdefault(number, set()), f"batch {number} is there twice"
                assert number >= before, f"batch {number} behind {before}"
                parts[number].add(part)
                before = number
    whole = [number for number, found in parts.items() if len(found) == len(texts_of(number))]
    assert len(whole) == len(parts), "a batch is there in part"
    for number in random.Random(len(whole)).sample(whole, min(20, len(whole))):
        found = store.lookup.query(queue_of(number)[0], f"n{number}", 10, 0, 1 << 60)
        assert len(found) == len(texts_of(number)), f"key of batch {number}"
    snapshots, tables = _snapshots(root)
    snapshots.load(0, store.end_offset, log_has_all=False)
    report = {
        "batches": sorted(whole),
        "seconds": store.recovery.seconds,
        "reason": store.recovery.reason,
        "end": store.end_offset,
        "committed": tables.offsets.get(GROUP, TOPICS[0], 0),
    }
    store.close()
    if thoroughly and whole:
        found_by_tool = verify(list_store(root))
        assert found_by_tool.findings.ok, f"verify: {found_by_tool.as_document()}"
    _write_all(out, json.dumps(report).encode())


@dataclass(slots=True)
class Tally:
    """What has happened so far."""

    cuts: int = 0
    acknowledged: int = 0
    pending_kept: int = 0
    torn: int = 0
    slowest_s: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)


class Campaign:
    """Cut after cut on one file system."""

    def __init__(self, mount: LoopMount, seed: int) -> None:
        self.tally = Tally()
        self._mount = mount
        self._root = mount.directory / "store"
        self._chooser = random.Random(seed)
        self._acknowledged: set[int] = set()
        self._gone: set[int] = set()
        self._sent = 0
        self._committed = -1  # in a snapshot that was written

    def run(self, cuts: int) -> None:
        """So many cuts; each a new file system from time to time."""
        for number in range(cuts):
            if number % CUTS_PER_FILE_SYSTEM == 0:
                self._mount.make()
                self._acknowledged, self._gone, self._sent, self._committed = set(), set(), 0, -1
            self._cut()
            self._examine(thoroughly=number % VERIFIED_EVERY == VERIFIED_EVERY - 1 or number == cuts - 1)
            if self._chooser.random() < 0.2:
                self._cut_recovery()
                self._examine(thoroughly=False)

    def _cut(self) -> None:
        first = self._sent
        child, pipe = _fork(lambda out: _until_cut(lambda: produce(self._root, first, out)))
        text = _read_for(pipe, 0.08 + self._chooser.random() ** 2 * 0.3)
        if self._chooser.random() < 0.5:
            self._write_pages_out()
        text += _read_for(pipe, 0)
        self._mount.cut()
        os.kill(child, signal.SIGKILL)
        # What was told from here on does not count: a sync that the shutdown overtakes may return without an error.
        late = _read_all(pipe)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 3, f"the producer ended: {late.decode()}"
        text = text[: text.rfind(b"\n") + 1]
        self._mount.unmount()
        self._mount.mount()
        lines = text.decode().splitlines()
        done = [int(line) for line in lines if not line.endswith("s")]
        self._committed = max([self._committed, *(int(line[:-2]) for line in lines if line.endswith(" s"))])
        self.tally.cuts += 1
        self.tally.acknowledged += len(done)
        self._acknowledged.update(done)
        self._sent = first + 100_000  # whatever was sent: those numbers are not used again

    def _cut_recovery(self) -> None:
        """A second cut while the store is being opened."""
        child, pipe = _fork(lambda out: examine(self._root, out, thoroughly=False))
        time.sleep(self._chooser.random() * 0.06)
        self._mount.cut()
        os.kill(child, signal.SIGKILL)
        _read_all(pipe)
        os.waitpid(child, 0)
        self._mount.unmount()
        self._mount.mount()
        self.tally.cuts += 1

    def _examine(self, *, thoroughly: bool) -> None:
        child, pipe = _fork(lambda out: examine(self._root, out, thoroughly=thoroughly))
        text = _read_all(pipe)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the store after cut {self.tally.cuts}: {text.decode()}"
        report = json.loads(text)
        found = set(report["batches"])
        lost, back = self._acknowledged - found, self._gone & found
        assert not lost, f"acknowledged batches lost: {sorted(lost)[:10]}, log ends at {report['end']}"
        assert not back, f"batches that were gone are back: {sorted(back)[:10]}"
        assert report["committed"] >= self._committed, f"offset {report['committed']}, was {self._committed}"
        pending = found - self._acknowledged
        self.tally.pending_kept += len(pending)
        self._acknowledged |= found  # consumers have seen them
        if found:
            self._gone |= set(range(max(found) - 2000, max(found) + 2000)) - found
        self.tally.torn += bool(report["reason"])
        self.tally.slowest_s = max(self.tally.slowest_s, report["seconds"])

    def _write_pages_out(self) -> None:
        """Some pages of the newest log files, as the system may at any time."""
        files = sorted((self._root / "commitlog").glob("0*"))[-3:]
        for path in files:
            if not path.stat().st_size:
                continue  # one that is just being made
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                for _ in range(self._chooser.randrange(4)):
                    page = self._chooser.randrange(len(mapped) // _PAGE)
                    mapped.flush(
                        page * _PAGE, _PAGE * min(self._chooser.choice((1, 1, 8)), len(mapped) // _PAGE - page)
                    )


def _until_cut(work: Callable[[], None]) -> None:
    """Run ``work``; that nothing can be written or read any more ends it."""
    try:
        work()
    except (OSError, StorageError) as error:
        if os.strerror(errno.EIO) in str(error):
            os._exit(3)
        raise


def _fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work(pipe)`` in a child: its pid, and the pipe's other end. An exception's text comes through it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(writing)
        status = 0
    except BaseException:
        _write_all(writing, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _write_all(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]


def _read_for(pipe: int, seconds: float) -> bytes:
    """What comes in that time; with 0, what is there."""
    deadline, text = time.monotonic() + seconds, b""
    while True:
        left = max(0.0, deadline - time.monotonic())
        if select.select([pipe], [], [], left)[0]:
            piece = os.read(pipe, 1 << 16)
            if not piece:
                break
            text += piece
        elif left == 0:
            break
    return text


def _read_all(pipe: int) -> bytes:
    text = b""
    while piece := os.read(pipe, 1 << 16):
        text += piece
    os.close(pipe)
    return text


def main(kind: str, directory: str, cuts: int, seed: int) -> int:
    """Run a campaign; 0 when nothing was lost."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    mount = LoopMount(kind, Path(directory))
    campaign = Campaign(mount, seed)
    try:
        campaign.run(cuts)
    except AssertionError as error:
        print(f"{kind} seed {seed}, cut {campaign.tally.cuts}: {error}")
        return 1
    finally:
        mount.close()
    tally = campaign.tally
    print(
        f"{kind} seed {seed}: {tally.cuts} cuts, {tally.acknowledged} batches acknowledged, 0 lost, "
        f"{tally.pending_kept} unacknowledged kept, {tally.torn} torn tails cut, slowest start {tally.slowest_s:.2f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
