"""How long one message takes to be found in a large store: by its key, and by its store time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from penstock.client import Admin, Producer, PullConsumer
from penstock.proto.errors import PenstockError

from .load.histogram import Histogram
from .load.load import ensure_topic
from .rig import Bench, Rig

KEYS = 10_000_000
LOOKUPS = 1000
SIZE = 100
_AT_ONCE = 10_000
_DISPATCH_S = 60.0


def lookups(rig: Rig) -> dict[str, float]:
    """Milliseconds of both lookups with ``KEYS`` messages of a key each; ``key`` and ``time``: what their median takes
    longer than that of a call which looks up nothing."""
    with rig.cluster() as bench:
        began_ms = _fill(bench)
        ended_ms = int(time.time() * 1000)
        chooser = random.Random(1)
        namesrv, topic = bench.cluster.plan.nameserver_addresses, "bench"
        with Admin(namesrv) as admin, PullConsumer(namesrv, group="bench-lookups") as consumer:

            def by_key() -> None:
                key = f"key-{chooser.randrange(KEYS)}"
                found = admin.query_messages(topic, key)
                if [message.keys for message in found] != [[key]]:
                    raise PenstockError(f"no figure: {len(found)} messages found by {key}, not the one")

            queues = consumer.queues(topic)

            def by_time() -> None:
                consumer.offset_for_time(chooser.choice(queues), chooser.randint(began_ms, ended_ms))

            def nothing() -> None:
                consumer.committed(queues[0])

            key_ms, time_ms, call_ms = _timed(by_key), _timed(by_time), _timed(nothing)
        bench.keep_cost()
        call = _quantile(call_ms, 0.5)
        return {
            "key": max(_quantile(key_ms, 0.5) - call, 0.0),
            "time": max(_quantile(time_ms, 0.5) - call, 0.0),
            "key_p50": _quantile(key_ms, 0.5),
            "key_p99": _quantile(key_ms, 0.99),
            "time_p50": _quantile(time_ms, 0.5),
            "time_p99": _quantile(time_ms, 0.99),
            "call_p50": call,
            "call_p99": _quantile(call_ms, 0.99),
        }


def _fill(bench: Bench) -> int:
    """Write the messages and wait until the last one can be found; when that began."""
    plan = bench.plan("produce", style="columnar", size=SIZE)
    ensure_topic(plan)
    began_ms = int(time.time() * 1000)
    bodies = [b"x" * SIZE] * _AT_ONCE
    with Producer(plan.namesrv, group="bench-lookups") as producer:
        for first in range(0, KEYS, _AT_ONCE):
            producer.produce_many(
                plan.topic, bodies, keys=[f"key-{number}" for number in range(first, first + _AT_ONCE)]
            )
            bench.rig.progress(f"lookups: {first:,} of {KEYS:,} keys written")
        producer.flush(timeout_s=_DISPATCH_S)
    deadline = time.monotonic() + _DISPATCH_S
    with Admin(plan.namesrv) as admin:
        while not admin.query_messages(plan.topic, f"key-{KEYS - 1}"):
            if time.monotonic() > deadline:
                raise PenstockError(f"no figure: the last key cannot be found after {_DISPATCH_S:.0f} s")
            time.sleep(0.1)
    return began_ms


def _timed(call: Callable[[], None]) -> Histogram:
    for _ in range(20):
        call()
    found = Histogram()
    for _ in range(LOOKUPS):
        started = time.perf_counter()
        call()
        found.add((time.perf_counter() - started) * 1000)
    return found


def _quantile(histogram: Histogram, share: float) -> float:
    return float(histogram.quantile(share) or 0.0)
