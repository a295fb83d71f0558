"""``python -m tests.support.crash.killed_writer DIRECTORY FIRST POOL_SIZE``: a store that is written to until a kill.

Batches are numbered from ``FIRST`` on, and each number is printed when its batch is flushed, or, with a pool,
committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.broker.store import FlushMode, Store
from tests.support.broker.stores import batch, flush, store_config
from tests.support.waiting import wait_until


def main(directory: Path, number: int, pool_size: int) -> None:
    """Write on and on."""
    mode = FlushMode.ASYNC_FLUSH if pool_size else FlushMode.SYNC_FLUSH
    store = Store.open(
        store_config(
            directory,
            flush_mode=mode,
            flush_thorough_interval_ms=30,
            is_pooled=pool_size > 0,
            pool_size=pool_size or 1,
        )
    )
    while True:
        _write(store, number, is_pooled=pool_size > 0)
        print(number, flush=True)
        number += 1


def _write(store: Store, number: int, *, is_pooled: bool) -> None:
    bodies = [b"%08d-%d" % (number, part) + b"." * 300 for part in range(5)]
    end = store.append("t", batch("t", bodies, [number % 3] * 5, mark=(7, 0, 0, number)), queues=3).end
    if is_pooled:
        store.request_commit(end)
        wait_until(lambda: store.end_offset >= end, what="the commit")
    else:
        flush(store)
    store.set_confirm(store.end_offset)
    store.dispatch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
