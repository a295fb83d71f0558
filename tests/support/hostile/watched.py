"""``python -m tests.support.hostile.watched broker|nameserver -c FILE``: that process, with a watchdog in it.

A task of its event loop beats every few milliseconds. A thread looks whether it does: when a beat is late, it notes
what the loop's thread is doing. SIGUSR2 writes what was seen since the last time to the file that ``WATCH_REPORT``
names, as JSON, and forgets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BEAT_S = 0.005
LATE_S = 0.05
"""A beat later than this is a stall worth a look."""
STALLS_KEPT = 20


@dataclass
class Stall:
    """The loop did nothing else for so long. ``cpu_ms``: of it the loop's thread computed."""

    ms: float
    cpu_ms: float
    stack: str = ""


class Watchdog:
    """Stalls since the last report. The loop writes ``_beat``, the thread ``_stack``, and each reads the other's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop_thread = threading.get_ident()
        self._beat = time.monotonic()
        self._stack = ""
        self._stalls: list[Stall] = []
        self._is_over = threading.Event()

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            cpu_s = time.thread_time()
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            late_s, self._beat = now - self._beat - BEAT_S, now
            if late_s > LATE_S:
                stall = Stall(late_s * 1000, (time.thread_time() - cpu_s) * 1000, self._stack)
                self._stalls = sorted([*self._stalls, stall], key=lambda each: -each.ms)[:STALLS_KEPT]
            self._stack = ""

    def look(self) -> None:
        """The thread: note where a stalled loop is."""
        while not self._is_over.wait(LATE_S / 2):
            if time.monotonic() - self._beat > LATE_S and not self._stack:
                frame = sys._current_frames().get(self._loop_thread)
                lines = traceback.format_stack(frame)[-6:] if frame is not None else []
                self._stack = " <- ".join(line.split("\n")[0].strip() for line in reversed(lines))

    def report(self) -> None:
        """Write the report, whole."""
        fresh = self._path.with_suffix(".tmp")
        fresh.write_text(json.dumps([asdict(stall) for stall in self._stalls]))
        fresh.replace(self._path)
        self._stalls = []

    def end(self) -> None:
        self._is_over.set()


@contextlib.asynccontextmanager
async def watching(path: Path) -> AsyncIterator[None]:
    """A watchdog in the running event loop."""
    dog = Watchdog(path)
    thread = threading.Thread(target=dog.look, name="watchdog", daemon=True)
    thread.start()
    beating = asyncio.create_task(dog.beat(), name="watchdog")
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, dog.report)
    try:
        yield
    finally:
        beating.cancel()
        dog.end()


def main(kind: str, config: str) -> int:
    """Run the process; its exit code."""
    module: Any = importlib.import_module(f"penstock.{kind}.{'process' if kind == 'broker' else 'server'}")
    serve = module.serve_until_signalled

    async def watched(*args: Any) -> None:
        async with watching(Path(os.environ["WATCH_REPORT"])):
            await serve(*args)

    module.serve_until_signalled = watched
    return int(module.run(config))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[3]))
