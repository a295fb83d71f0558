"""``python -m penstock.drill.load.load_worker``: a load test's producer that leaves a history, as those of drills do.

Its job names the folder in ``history`` and the broker groups in ``shards``. Rows say what became of each message; the
numbers that a stream reserves are not announced, so a history of a producer that was killed is not whole.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.bench.load.worker import Orders, follow, produce
from penstock.judge.history import NO_KEY, Op, Outcome, Recorder
from penstock.proto.errors import DeliveryFailed, OutcomeUnknown

from .sending import place_of

if TYPE_CHECKING:
    from penstock.client import SendReceipt

FLUSH_ROWS = 4096


class Notes:
    """Called with what became of a message: adds its row. Threads may share it."""

    def __init__(self, recorder: Recorder, shards: Sequence[str], keys: int) -> None:
        self._recorder = recorder
        self._shards = {name: number for number, name in enumerate(shards)}
        self._keys = keys
        self._rows = 0
        self._lock = threading.Lock()

    def __call__(
        self, ended: SendReceipt | BaseException, stream: int, number: int, start_ns: int, body: bytes
    ) -> None:
        key = number % self._keys if self._keys else NO_KEY
        message: dict[str, Any] = {"stream": stream, "sequence": number, "crc": zlib.crc32(body), "key": key}
        if isinstance(ended, BaseException):
            # Of a batch that was delivered in part nobody says here which part.
            is_unknown = isinstance(ended, (OutcomeUnknown, DeliveryFailed))
            outcome = Outcome.UNKNOWN if is_unknown else Outcome.REFUSED
        else:
            from penstock.client import SendStatus

            outcome = Outcome.OK if ended.status is SendStatus.SEND_OK else Outcome.UNKNOWN
            message |= place_of(ended, self._shards)
        self._recorder.add(Op.SEND, outcome, start_ns, time.monotonic_ns(), **message)
        with self._lock:
            self._rows += 1
            is_due = self._rows % FLUSH_ROWS == 0
        if is_due:
            self._recorder.flush()


def main() -> int:
    """Do the job that the first input line describes."""
    return follow({"produce": _produce})


def _produce(job: dict[str, Any], orders: Orders) -> None:
    name = f"producer-{job['number']}"
    recorder = Recorder(Path(job["history"]) / f"{name}.history", job["number"], name, job["shards"])
    try:
        produce(job, orders, Notes(recorder, job["shards"], job["keys"]))
    finally:
        recorder.close()


if __name__ == "__main__":
    sys.exit(main())
