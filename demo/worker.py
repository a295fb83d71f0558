"""``python -m penstock.demo.worker``: the demo's producer, or one of its consumers; led as the load workers are."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.load.worker import Orders, follow, progress, say
from penstock.proto.errors import DeliveryFailed, PenstockError

from .flights import NO_DELAY, PROCESSED, flight_number, read_flights

if TYPE_CHECKING:
    from penstock.client import Delivery

BIN_S = 0.1
"""Acknowledgements are counted per tenth of a second and broker."""
DELIVERY_TIMEOUT_S = 120.0
"""Longer than a broker is away, on a busy machine too: what was under way to it is not given up nor sent elsewhere."""
SLICE = 100
LINGER_MS = 50.0
"""Flights go to sixteen queues by their key: a batch holds those of two queues that came within this time."""


def main() -> int:
    """Do the job that the first input line describes."""
    return follow({"produce": produce, "consume": consume})


class Acknowledged:
    """Which flights are acknowledged, and when which broker did so. Written by the client's threads."""

    def __init__(self, count: int) -> None:
        self.flags = np.zeros(count, dtype=np.bool_)
        self.count = 0
        self.failed: dict[str, int] = {}
        self.bins: dict[str, dict[int, int]] = {}  # broker name -> tenth of a second (monotonic) -> count
        self._lock = threading.Lock()

    def on_delivery(self, delivery: Delivery) -> None:
        """The outcome of some flights."""
        count = len(delivery.bodies)
        if delivery.error is not None:
            self.on_failed(delivery.error, count)
            return
        numbers = [flight_number(body) for body in delivery.bodies]
        tick = int(time.monotonic() / BIN_S)
        with self._lock:
            self.flags[numbers] = True
            self.count += count
            counts = self.bins.setdefault(delivery.broker_name, {})
            counts[tick] = counts.get(tick, 0) + count

    def on_failed(self, error: Exception, count: int = 1) -> None:
        """Flights were refused, or nobody knows."""
        text = f"{type(error).__name__}: {error}"[:300]
        with self._lock:
            self.failed[text] = self.failed.get(text, 0) + count


def produce(job: dict[str, Any], orders: Orders) -> None:
    """Send every flight at the job's pace; its key and its order are those of its aircraft."""
    from penstock.client import Producer

    flights = list(read_flights())
    gc.freeze()  # or each collection would look at every one of them
    done = Acknowledged(len(flights))
    with Producer(
        job["namesrv"],
        group="flights-producer",
        on_delivery=done.on_delivery,
        buffer_bytes=256 << 20,
        linger_ms=LINGER_MS,
        delivery_timeout_s=DELIVERY_TIMEOUT_S,
    ) as producer:
        producer.prepare(job["topic"])
        say(ready=True)
        orders.go.wait()
        began = time.monotonic()
        sent = 0
        with progress(lambda: {"sent": sent, "acknowledged": done.count}):
            for flight in flights:
                if sent % SLICE == 0:
                    if orders.stop.is_set():
                        break
                    time.sleep(max(began + sent / job["rate"] - time.monotonic(), 0.0))
                sent += 1
                try:
                    producer.produce(
                        job["topic"],
                        flight.body,
                        tag=flight.carrier,
                        keys=flight.tail_number,
                        sharding_key=flight.tail_number,
                    )
                except PenstockError as error:
                    done.on_failed(error)
            with contextlib.suppress(DeliveryFailed):  # each outcome is told to on_delivery as well
                producer.flush(DELIVERY_TIMEOUT_S + 2)
    np.save(job["acknowledged_path"], done.flags)
    bins = {name: sorted(counts.items()) for name, counts in done.bins.items()}
    document = {"sent": sent, "acknowledged": done.count, "failed": done.failed, "bins": bins}
    say(result={**document, "began": began, "ended": time.monotonic()})


def consume(job: dict[str, Any], orders: Orders) -> None:
    """Keep what each flight adds to the result, in a file that is always ahead of the committed offsets.

    A poll commits what the poll before it returned, and by then that is in the file. So a consumer that dies leaves
    every flight in its file that the group will not deliver again, and perhaps some that it will: duplicates.
    """
    from penstock.client import PullConsumer

    processed = 0
    last_from: dict[str, float] = {}
    kept = os.open(job["processed_path"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with PullConsumer(job["namesrv"], group=job["group"], consume_from="first") as consumer:
        consumer.subscribe(job["topic"])
        say(ready=True)
        owned = 0
        with progress(
            lambda: {"processed": processed, "queues": owned, **{f"at {k}": v for k, v in last_from.items()}}
        ):
            while not orders.stop.is_set():
                messages = consumer.poll(timeout_s=0.2, max_messages=1000)
                owned = len(consumer.assignment())
                if not messages:
                    continue
                rows = np.array([_entry(message.body) for message in messages], dtype=PROCESSED)
                _write(kept, rows.tobytes())
                processed += len(messages)
                now = time.monotonic()
                last_from.update(dict.fromkeys({message.broker_name for message in messages}, now))
    os.close(kept)
    say(result={"processed": processed})


def _entry(body: bytes) -> tuple[int, bytes, int]:
    flight = json.loads(body)
    delay = flight["arr_delay"]
    return flight["n"], flight["carrier"].encode(), NO_DELAY if delay is None else delay


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main())
