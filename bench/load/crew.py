"""The processes of a load test, as their starter sees them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.proto.errors import PenstockError

WORKER = "penstock.bench.load.worker"
START_TIMEOUT_S = 120.0
"""The first client on a machine compiles its kernels."""


class WorkerFailed(PenstockError):
    """A process of the load test ended without a result."""


class Worker:
    """One process. Its lines are read by a thread, which ends with it.

    What it logs goes to ``log_path``, or nowhere: the errors that matter are counted in its result. ``wrap`` stands
    before its command and must end in becoming it.
    """

    def __init__(
        self, job: dict[str, Any], module: str = WORKER, log_path: Path | None = None, wrap: Sequence[str] = ()
    ) -> None:
        self.name = f"{'producer' if job['role'] == 'produce' else 'consumer'}-{job['number']}"
        self.progress: dict[str, Any] = {}
        self.result: dict[str, Any] | None = None
        self.error = ""
        self._ready = threading.Event()
        self._ended = threading.Event()
        with open(log_path or os.devnull, "ab") as log:
            self._process = subprocess.Popen(
                [*wrap, sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the starter, which lets the workers finish
            )
        self._reader = threading.Thread(target=self._read, name=f"{self.name}-reader", daemon=True)
        self._reader.start()
        self._say(json.dumps(job))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def await_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when it is connected and waits for :meth:`go`. Raises WorkerFailed: it ended, or took longer."""
        if not self._ready.wait(timeout_s) or (self._ended.is_set() and self.result is None):
            raise WorkerFailed(f"{self.name} did not begin: {self.error or f'no answer within {timeout_s:.0f} s'}")

    def go(self) -> None:
        self._say("go")

    def stop(self) -> None:
        """Finish what is under way and tell the result."""
        self._say("stop")

    def await_result(self, timeout_s: float) -> dict[str, Any]:
        """The result that the process told at its end. Raises WorkerFailed: it ended without, or took longer."""
        has_ended = self._ended.wait(timeout_s)
        if self.result is None:
            code = self._process.poll()
            raise WorkerFailed(f"{self.name} told no result: {self.error or f'exit code {code}'}")
        if not has_ended:
            raise WorkerFailed(f"{self.name} told its result, and its process still runs after {timeout_s:.0f} s")
        return self.result

    def kill(self) -> None:
        """End it at once, and free what belongs to it. May be called again."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a line was still to be flushed to one that is gone
                    pipe.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended: await_result says how
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                document = json.loads(line)
            except ValueError:  # somebody printed there
                continue
            self.progress = document.get("progress", self.progress)
            self.result = document.get("result", self.result)
            self.error = document.get("error", self.error)
            if "ready" in document:
                self._ready.set()
        self._ended.set()
        self._ready.set()


def finished(workers: Sequence[Worker], timeout_s: float) -> list[dict[str, Any]]:
    """The results of all of them, which are told to finish what is under way. Raises as :meth:`Worker.await_result`."""
    for worker in workers:
        worker.stop()
    return [worker.await_result(timeout_s) for worker in workers]
