"""How long one message takes to be found in a large store: by its key, and by its store time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from penstock.client import Admin, Producer, PullConsumer
from penstock.proto.errors import PenstockError

from ..load.load import ensure_topic
from ..rig import Bench, Rig

KEYS = 10_000_000
LOOKUPS = 1000
SIZE = 100
_AT_ONCE, _AT_ONCE_BYTES = 10_000, 16 << 20
_DISPATCH_S = 60.0


def lookups(rig: Rig) -> dict[str, float]:
    """Milliseconds of both lookups with ``KEYS`` messages of a key each; ``key`` and ``time``: what their median takes
    longer than that of a call which looks up nothing."""
    with rig.cluster() as bench:
        began_ms = fill(bench)
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

            key, found_time, call = (timed(call) for call in (by_key, by_time, nothing))
        bench.keep_cost()
        return {
            "key": max(key["p50"] - call["p50"], 0.0),
            "time": max(found_time["p50"] - call["p50"], 0.0),
            **{f"key_{name}": value for name, value in key.items()},
            **{f"time_{name}": value for name, value in found_time.items()},
            **{f"call_{name}": value for name, value in call.items()},
        }


def fill(bench: Bench, count: int = KEYS, *, first: int = 0, size: int = SIZE) -> int:
    """Write the messages ``first`` to ``count`` and wait until the last one can be found; when that began."""
    plan = bench.plan("produce", style="columnar", size=size)
    ensure_topic(plan)
    began_ms = int(time.time() * 1000)
    bodies = [b"x" * size] * max(min(_AT_ONCE, _AT_ONCE_BYTES // size), 1)
    with Producer(plan.namesrv, group="bench-lookups") as producer:
        for number in range(first, count, len(bodies)):
            keys = [f"key-{each}" for each in range(number, min(number + len(bodies), count))]
            producer.produce_many(plan.topic, bodies[: len(keys)], keys=keys)
            bench.rig.progress(f"{number:,} of {count:,} keys written")
        producer.flush(timeout_s=_DISPATCH_S)
    deadline = time.monotonic() + _DISPATCH_S
    with Admin(plan.namesrv) as admin:
        while not admin.query_messages(plan.topic, f"key-{count - 1}"):
            if time.monotonic() > deadline:
                raise PenstockError(f"no figure: the last key cannot be found after {_DISPATCH_S:.0f} s")
            time.sleep(0.1)
    return began_ms


def timed(call: Callable[[], object], count: int = LOOKUPS) -> dict[str, float]:
    """Median and 99th percentile of ``count`` calls, in milliseconds."""
    for _ in range(20):
        call()
    times_ms = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times_ms.append((time.perf_counter() - started) * 1000)
    return {f"p{share}": float(np.percentile(times_ms, share)) for share in (50, 99)}
