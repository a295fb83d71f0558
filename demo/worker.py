"""Who sends and who keeps the demo's flights: a thread of the demo, and consumers, which are processes to be killed.

``python -m penstock.demo.worker`` is a consumer, led as the load workers are.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.load.worker import Orders, follow, progress, say
from penstock.proto.errors import DeliveryFailed, PenstockError

from .flights import NO_DELAY, PROCESSED, Flight, flight_number

if TYPE_CHECKING:
    from penstock.client import Delivery

DELIVERY_TIMEOUT_S = 120.0
"""Longer than a broker is away, on a busy machine too: what was under way to it is not given up nor sent elsewhere."""
SLICE = 100
LINGER_MS = 50.0
"""Flights go to sixteen queues by their key: a batch holds those of two queues that came within this time."""


class Producing(threading.Thread):
    """Sends flights at a pace; a flight's key and its order are those of its aircraft.

    What became of them is written by the client's threads, ``sent``, ``seconds`` and ``error`` by this one.
    """

    def __init__(self, name_server: str, topic: str, rate: int, flights: Sequence[Flight]) -> None:
        super().__init__(name="flights-producer", daemon=True)
        self._name_server, self._topic, self._rate, self._flights = name_server, topic, rate, flights
        self.acknowledged = np.zeros(len(flights), np.bool_)  # by number
        self.times: list[tuple[float, str, int]] = []  # when (monotonic) which broker acknowledged how many
        self.failed: Counter[str] = Counter()
        self.sent = 0
        self.seconds = 0.0
        self.error: PenstockError | None = None

    def run(self) -> None:
        """Send all of them, and wait until the outcome of each is known."""
        from penstock.client import Producer

        gc.freeze()  # or each collection would look at every flight
        try:
            with Producer(
                self._name_server,
                group="flights-producer",
                on_delivery=self._on_delivery,
                buffer_bytes=256 << 20,
                linger_ms=LINGER_MS,
                delivery_timeout_s=DELIVERY_TIMEOUT_S,
            ) as producer:
                began = time.monotonic()
                for flight in self._flights:
                    if self.sent % SLICE == 0:
                        time.sleep(max(began + self.sent / self._rate - time.monotonic(), 0.0))
                    self.sent += 1
                    try:
                        key = flight.tail_number
                        producer.produce(self._topic, flight.body, tag=flight.carrier, keys=key, sharding_key=key)
                    except PenstockError as error:
                        self.failed[_told(error)] += 1
                with contextlib.suppress(DeliveryFailed):  # each outcome is told to _on_delivery as well
                    producer.flush(DELIVERY_TIMEOUT_S + 2)
                self.seconds = time.monotonic() - began
        except PenstockError as error:
            self.error = error

    def _on_delivery(self, delivery: Delivery) -> None:
        count = len(delivery.bodies)
        if delivery.error is not None:
            self.failed[_told(delivery.error)] += count
        else:
            self.acknowledged[[flight_number(body) for body in delivery.bodies]] = True
            self.times.append((time.monotonic(), delivery.broker_name, count))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def consume(job: dict[str, Any], orders: Orders) -> None:
    """Keep what each flight adds to the result, in a file that is always ahead of the committed offsets.

    A poll commits what the poll before it returned, and by then that is in the file. So a consumer that dies leaves
    every flight in its file that the group will not deliver again, and perhaps some that it will: duplicates.
    """
    from penstock.client import PullConsumer

    processed = owned = 0
    with (
        open(job["processed_path"], "ab") as kept,
        PullConsumer(job["namesrv"], group=job["group"], consume_from="first") as consumer,
    ):
        consumer.subscribe(job["topic"])
        say(ready=True)
        with progress(lambda: {"processed": processed, "queues": owned}):
            while not orders.stop.is_set():
                messages = consumer.poll(timeout_s=0.2, max_messages=1000)
                owned = len(consumer.assignment())
                if messages:
                    rows = np.array([_entry(message.body) for message in messages], dtype=PROCESSED)
                    kept.write(rows.tobytes())
                    kept.flush()
                    processed += len(messages)
    say(result={"processed": processed})


def _entry(body: bytes) -> tuple[int, bytes, int]:
    flight = json.loads(body)
    delay = flight["arr_delay"]
    return flight["n"], flight["carrier"].encode(), NO_DELAY if delay is None else delay


if __name__ == "__main__":
    sys.exit(follow({"consume": consume}))
