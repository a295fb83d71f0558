"""The n-th call of each kind fails: the error has a name, and a start afterwards finds everything acknowledged."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from penstock.broker.store import FlushMode, Store
from penstock.proto.errors import StorageError
from tests.support.broker.stores import batch, read, store_config
from tests.support.crash.failing_disk import KINDS, FailingDisk
from tests.support.waiting import wait_until

BATCHES = 24


class Scenario:
    """Append, roll, flush, dispatch, checkpoint, close; remembers what was acknowledged."""

    def __init__(self, root: Path, disk: FailingDisk) -> None:
        self._config = store_config(root, flush_mode=FlushMode.SYNC_FLUSH)
        self._disk = disk
        self.acknowledged = -1

    def run(self) -> None:
        store = Store.open(self._config, disk=self._disk)
        fatal: list[StorageError] = []
        store.on_fatal = fatal.append
        try:
            self._work(store, fatal)
        except BaseException:
            store.abandon()
            raise
        store.close()

    def _work(self, store: Store, fatal: list[StorageError]) -> None:
        for number in range(BATCHES):
            properties = [b"KEYS\x01k%d\x02" % number] * 10
            bodies = [b"%04d" % number + b"." * 90] * 10
            store.append("t", batch("t", bodies, [0, 1] * 5, properties=properties, mark=(7, 0, 0, number)), queues=2)
            end = store.end_offset
            store.request_flush(end)
            wait_until(lambda end=end: store.flushed_offset >= end or fatal, what="the flush")  # type: ignore[misc]
            if fatal:
                raise fatal[0]
            self.acknowledged = number
            store.set_confirm(end)
            while store.dispatched_offset < end:
                store.dispatch()
            if number == BATCHES // 2:
                store.checkpoint()


def _verify(root: Path, acknowledged: int) -> None:
    store = Store.open(store_config(root))
    for queue_id in (0, 1):
        records = read(store, "t", queue_id)
        assert [record.queue_offset for record in records] == list(range(len(records)))
        numbers = [int(record.body[:4]) for record in records]
        assert numbers == [number for number in range(len(records) // 5) for _ in range(5)]
        assert len(records) >= 5 * (acknowledged + 1), "an acknowledged batch is missing"
    for number in range(acknowledged + 1):
        assert len(store.lookup.query("t", f"k{number}", 100, 0, 1 << 60)) == 10
    store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_may_fail_once(tmp_path: Path, kind: str, code: int) -> None:
    nth = 0
    while True:
        nth += 1 + nth // 8  # all of the first ones, then fewer and fewer
        root = tmp_path / str(nth)
        disk = FailingDisk(kind, nth, code)
        scenario = Scenario(root, disk)
        with contextlib.suppress(StorageError):  # anything else is not an error with a name
            scenario.run()
        if not disk.failed:
            assert scenario.acknowledged == BATCHES - 1
            break
        _verify(root, scenario.acknowledged)
