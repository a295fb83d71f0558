"""SIGKILL of a process that writes: nothing flushed, or committed from a pool, is missing, and all is in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.store import Store
from tests.support.broker.stores import read, store_config

WRITER = """
import sys
from pathlib import Path
from tests.support.broker.stores import batch, flush, store_config
from tests.support.waiting import wait_until
from penstock.broker.store import FlushMode, Store

pool_size = int(sys.argv[3])
mode = FlushMode.ASYNC_FLUSH if pool_size else FlushMode.SYNC_FLUSH
store = Store.open(
    store_config(
        Path(sys.argv[1]), flush_mode=mode, flush_thorough_interval_ms=30, is_pooled=pool_size > 0,
        pool_size=pool_size or 1,
    )
)
number = int(sys.argv[2])
while True:
    bodies = [b"%08d-%d" % (number, part) + b"." * 300 for part in range(5)]
    result = store.append("t", batch("t", bodies, [number % 3] * 5, mark=(7, 0, 0, number)), queues=3)
    if pool_size:
        store.request_commit(result.end)
        wait_until(lambda: store.end_offset >= result.end, what="the commit")
    else:
        flush(store)
    store.set_confirm(store.end_offset)
    store.dispatch()
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize(("seed", "pool_size"), [(0, 0), (3, 1), (4, 2)])
def test_what_was_flushed_or_committed_survives_kill_minus_nine_again_and_again(
    tmp_path: Path, seed: int, pool_size: int
) -> None:
    randomly = random.Random(seed)
    following = 0
    for _ in range(3):
        stop_at = following + randomly.randrange(1, 60)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(following), str(pool_size)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            last = -1
            for line in child.stdout:
                last = int(line)
                if last >= stop_at:
                    break
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else last
        store = Store.open(store_config(tmp_path))
        assert not store.recovery.clean
        found: dict[int, int] = {}
        for queue_id in range(3):
            records = read(store, "t", queue_id)
            assert [record.queue_offset for record in records] == list(range(len(records)))
            for record in records:
                found[int(record.body[:8])] = found.get(int(record.body[:8]), 0) + 1
        store.close()
        assert sorted(found) == list(range(len(found))), "a batch is missing in the middle"
        assert len(found) > acknowledged
        assert set(found.values()) == {5}, "a batch is there in part"
        following = len(found)
