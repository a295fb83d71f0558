"""``python -m tests.support.hostile.watched broker|nameserver|gateway -c FILE``: that process, with a watchdog in it.

A task of its event loop beats every few milliseconds. A thread looks whether it does: when a beat is late, it notes
what the loop's thread is doing. SIGUSR2 writes what was seen since the last time to the file that ``WATCH_REPORT``
names, as JSON, and forgets it. The methods that the process serves are written beside it.
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
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from penstock.gateway.http2.method import Method
from penstock.gateway.http2.server import Server

SERVED = "served.json"
BEAT_S = 0.005
LATE_S = 0.05
"""A beat later than this is a stall worth a look."""
STALLS_KEPT = 20


@dataclass
class Stall:
    """The loop did nothing else for so long. ``cpu_ms``: of it its thread computed; ``waited_ms``: it would have liked
    to, and others had the processor.
    """

    ms: float
    cpu_ms: float
    waited_ms: float
    stack: str = ""

    @property
    def own_ms(self) -> float:
        """What is the process's doing, not the machine's."""
        return self.ms - self.waited_ms

    def __str__(self) -> str:
        return f"{self.own_ms:.0f} ms (and {self.waited_ms:.0f} for others), computing {self.cpu_ms:.0f}: {self.stack}"


def waited_for_processor_s() -> float:
    """How long this thread has been ready to run and was not run, in its life; 0 where Linux does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


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
            cpu_s, waited_s = time.thread_time(), waited_for_processor_s()
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            late_s, self._beat = now - self._beat - BEAT_S, now
            if late_s > LATE_S:
                cpu_s, waited_s = time.thread_time() - cpu_s, waited_for_processor_s() - waited_s
                stall = Stall(late_s * 1000, cpu_s * 1000, waited_s * 1000, self._stack)
                self._stalls = sorted([*self._stalls, stall], key=lambda each: -each.own_ms)[:STALLS_KEPT]
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
    served: list[str] = []
    make_handler, start = grpc.method_handlers_generic_handler, Server.start

    def note(paths: Iterable[str]) -> None:
        served.extend(paths)
        Path(os.environ["WATCH_REPORT"]).with_name(SERVED).write_text(json.dumps(served))

    def noting(service: str, handlers: dict[str, Any]) -> Any:
        note(f"/{service}/{name}" for name in handlers)
        return make_handler(service, handlers)

    def starting(server: Server, methods: Mapping[str, Method]) -> None:
        note(methods)
        start(server, methods)

    grpc.method_handlers_generic_handler = noting
    Server.start = starting  # type: ignore[method-assign]
    return int(module.run(config))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[3]))
