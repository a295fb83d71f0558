"""SIGKILL of a process that writes: nothing flushed, or committed from a pool, is missing, and all is in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.store import Store
from tests.support.broker.stores import read, store_config
from tests.support.cluster.nursery import start_from_nursery


@pytest.fixture(autouse=True)
def _forked_writers() -> Iterator[None]:
    with start_from_nursery(sys.modules[__name__]):
        yield


@pytest.mark.parametrize(("seed", "pool_size"), [(0, 0), (3, 1), (4, 2)])
def test_what_was_flushed_or_committed_survives_kill_minus_nine_again_and_again(
    tmp_path: Path, seed: int, pool_size: int
) -> None:
    randomly = random.Random(seed)
    following = 0
    for _ in range(3):
        stop_at = following + randomly.randrange(1, 60)
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash.killed_writer", str(tmp_path), str(following), str(pool_size)],
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
