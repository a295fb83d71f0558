"""One consumer process of a load test: what it receives, how old that is, and what the numbers in it are."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .histogram import Histogram
from .ledger import Received, headers_of

if TYPE_CHECKING:
    from penstock.client import PullConsumer

POLL_TIMEOUT_S = 0.2
POLL_MESSAGES_MAX = 10_000


class Intake:
    """Receives until it is stopped. Counts are written by its thread and read by others."""

    def __init__(self, receiver: PullConsumer, job: dict[str, Any], stop: threading.Event) -> None:
        self.received = 0
        self.body_bytes = 0
        self.first_ns = 0  # monotonic
        self.last_ns = 0
        self.cpu_s = 0.0  # from the first message to the last
        self.latency = Histogram()
        self._receiver = receiver
        self._stop = stop
        self._arrays = job["consume_style"] == "arrays"
        self._measure = job["kind"] == "both"
        self._path: str | None = job["received_path"]
        self._seen = Received() if self._path else None

    def run(self) -> None:
        """Poll until :attr:`stop` is set; then leave the numbers in their file."""
        poll = self._poll_arrays if self._arrays else self._poll_messages
        cpu_at_first = 0.0
        while not self._stop.is_set():
            count, size = poll()
            if not count:
                continue
            self.last_ns = time.monotonic_ns()
            if not self.first_ns:
                self.first_ns, cpu_at_first = self.last_ns, time.process_time()
            self.cpu_s = time.process_time() - cpu_at_first
            self.received += count
            self.body_bytes += size
        if self._seen is not None and self._path is not None:
            self._seen.save(Path(self._path))

    def _poll_messages(self) -> tuple[int, int]:
        messages = self._receiver.poll(timeout_s=POLL_TIMEOUT_S, max_messages=POLL_MESSAGES_MAX)
        bodies = [message.body for message in messages]
        if not bodies:
            return 0, 0
        if self._seen is not None:
            self._keep(messages, bodies)
        elif self._measure:
            born = np.array([message.born_timestamp_ms for message in messages[:: max(len(bodies) // 100, 1)]])
            self.latency.add_all(np.maximum(time.time() * 1000 - born, 0.0))
        return len(bodies), sum(map(len, bodies))

    def _poll_arrays(self) -> tuple[int, int]:
        batch = self._receiver.poll_batch(timeout_s=POLL_TIMEOUT_S)
        if not len(batch):
            return 0, 0
        if self._seen is not None:
            headers, fits = headers_of(batch.bodies())
            rows = batch.rows[fits]
            self._seen.add(headers, batch.broker_name, rows["queue_id"], rows["queue_offset"])
            self._measure_numbered(headers)
        elif self._measure:
            self.latency.add_all(np.maximum(time.time() * 1000 - batch.born_timestamps, 0.0))
        return len(batch), int(batch.body_sizes.sum())

    def _keep(self, messages: Sequence[Any], bodies: Sequence[bytes]) -> None:
        assert self._seen is not None
        headers, fits = headers_of(bodies)
        numbered = [message for message, has_header in zip(messages, fits.tolist(), strict=True) if has_header]
        queue_ids = np.array([message.queue_id for message in numbered], dtype=np.int32)
        offsets = np.array([message.queue_offset for message in numbered], dtype=np.int64)
        names = np.array([message.broker_name for message in numbered])
        for name in np.unique(names):
            of_broker = names == name
            self._seen.add(headers[of_broker], str(name), queue_ids[of_broker], offsets[of_broker])
        self._measure_numbered(headers)

    def _measure_numbered(self, headers: npt.NDArray[np.void]) -> None:
        if self._measure:
            age_ns = np.int64(time.time_ns()) - headers["sent_ns"].astype(np.int64)
            self.latency.add_all(np.maximum(age_ns / 1e6, 0.0))
