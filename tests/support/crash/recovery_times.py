"""How long a store takes to open: after a kill, after a clean end, and without its queues and index.

``python -m tests.support.crash.recovery_times DIRECTORY [MEBIBYTES]``; every open is a child of its own, and the
kernels are compiled before the clock starts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from penstock.broker.store import FlushMode, Store, StoreConfig
from tests.support.broker.stores import HOST, batch

BODY = b"x" * 1024
BATCH = 1000
QUEUES = 8


def _config(root: Path) -> StoreConfig:
    return StoreConfig(root=root, flush_mode=FlushMode.ASYNC_FLUSH, store_host=HOST)


def _fill(root: Path, size: int, *, killed: bool) -> None:
    store = Store.open(_config(root))
    properties = [b"TAGS\x01a\x02UNIQ_KEY\x01%032d\x02" % number for number in range(BATCH)]
    queue_ids = [number % QUEUES for number in range(BATCH)]
    records = batch("t", [BODY] * BATCH, queue_ids, properties=properties)
    while store.end_offset < size:
        store.append("t", records, queues=QUEUES)
        store.set_confirm(store.end_offset)
        store.dispatch(16 << 20)
    if killed:
        os._exit(9)
    store.close()


def _opened(root: Path) -> dict[str, float]:
    started = time.monotonic()
    store = Store.open(_config(root))
    seconds = time.monotonic() - started
    messages = sum(store.reader.queue_range("t", queue_id)[1] for queue_id in range(QUEUES))
    found = {"seconds": seconds, "messages": messages, "scanned": store.recovery.scanned_bytes}
    store.close()
    return found


def _child(work: Callable[[], object]) -> dict[str, float]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    text = os.read(reading, 1 << 16)
    os.close(reading)
    return json.loads(text) if text else {}


def measure(directory: Path, size: int) -> dict[str, dict[str, float]]:
    """Seconds, messages and scanned bytes of each kind of start."""
    root = directory / "store"
    found = {}
    _child(lambda: _fill(root, size, killed=True))
    found["after kill -9"] = _child(lambda: _opened(root))
    found["after a clean end"] = _child(lambda: _opened(root))
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    found["queues and index deleted"] = _child(lambda: _opened(root))
    return found


def main(directory: str, mebibytes: str = "1024") -> int:
    """Print the figures."""
    for name, figures in measure(Path(directory), int(mebibytes) << 20).items():
        rate = figures["messages"] / figures["seconds"]
        print(
            f"{name}: {figures['seconds']:.2f} s, {figures['messages']:.0f} messages, {rate / 1e6:.2f} M messages/s, "
            f"{figures['scanned'] / (1 << 20):.0f} MiB scanned"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
