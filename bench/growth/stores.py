"""A store that grows: messages and bytes of the log, and queues."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.client import Admin, Producer, PullConsumer

from ..cases.cases import FIRST_KEYS
from ..cases.lookups import fill, timed
from ..machine import own_memory_mib
from ..rig import Bench, Rig
from ..runner import Figures

SMALL, LARGE = 100, 64 << 10
LOOKUPS = 200
GIB = 1 << 30
BROKER = "broker-a-0"
_SLICE, _BATCH, _WAIT_S = 500_000, 10_000, 120.0

UNITS = {
    "append": "µs a message",
    "found by key": "ms",
    "found by time": "ms",
    "start": "s",
    "recovery": "s",
    "memory": "MiB",
}


def messages(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many messages of 100 B with a key each."""
    yield from _grown(rig, sizes, SMALL)


def log_gib(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many GiB of messages of 64 KiB with a key each."""
    yield from _grown(rig, [size * GIB // LARGE for size in sizes], LARGE)


def _grown(rig: Rig, counts: Sequence[int], body: int) -> Iterator[Figures]:
    """One store, which is filled up to each size."""
    with rig.cluster() as bench:
        written = 0
        for count in counts:
            fill(bench, count, first=written, size=body)
            written = count
            append = _append_us(bench, body)
            start = started(bench)
            bench.cluster.kill(BROKER)
            recovery = _seconds(lambda: bench.cluster.start(BROKER, timeout_s=_WAIT_S))
            yield {
                "append": append,
                **_found(bench, written),
                "start": start,
                "recovery": recovery,
                "memory": memory_mib(bench),
            }


def _append_us(bench: Bench, body: int) -> float:
    """Of so many messages that they do not change the size much; they have no keys."""
    plan = bench.plan("produce")
    count = min(_SLICE, (256 << 20) // body)
    bodies = [bytes(body)] * min(_BATCH, count)
    with Producer(plan.namesrv, group="bench-growth") as producer:

        def write(wanted: int) -> None:
            for done in range(0, wanted, len(bodies)):
                producer.produce_many(plan.topic, bodies[: min(len(bodies), wanted - done)])
            producer.flush(timeout_s=_WAIT_S)

        write(count // 10)
        return _seconds(lambda: write(count)) / count * 1e6


def _found(bench: Bench, count: int) -> Figures:
    """The medians of looking up any message, in ms."""
    chooser = random.Random(1)
    plan = bench.plan("produce")
    now_ms = int(time.time() * 1000)
    with Admin(plan.namesrv) as admin, PullConsumer(plan.namesrv, group="bench-growth") as consumer:
        queues = consumer.queues(plan.topic)
        by_key = timed(lambda: admin.query_messages(plan.topic, f"key-{chooser.randrange(count)}"), LOOKUPS)
        by_time = timed(
            lambda: consumer.offset_for_time(chooser.choice(queues), now_ms - chooser.randrange(60_000)), LOOKUPS
        )
    return {"found by key": by_key["p50"], "found by time": by_time["p50"]}


QUEUES_UNITS = {"append": "µs a message", "start": "s", "memory": "MiB"}


def queues(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """One topic of so many queues that have their files, a fresh store each."""
    for size in sizes:
        with rig.cluster() as bench:
            plan = bench.plan("produce", style="produce", size=1024, queues=size)
            keys = FIRST_KEYS * size
            bench.prepare(replace(plan, size=SMALL, keys=keys, count=keys, seconds=None))
            append = 1e6 / bench.rate(plan)
            memory = memory_mib(bench)
            yield {"append": append, "start": started(bench), "memory": memory}


def started(bench: Bench) -> float:
    """Seconds from the broker's start, after it has ended in order, until it serves."""
    bench.cluster.stop(BROKER, timeout_s=_WAIT_S)
    return _seconds(lambda: bench.cluster.start(BROKER, timeout_s=_WAIT_S))


def memory_mib(bench: Bench) -> float:
    """Of the brokers, besides mapped files."""
    return sum(own_memory_mib(broker.pid) for broker in bench.brokers())


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
