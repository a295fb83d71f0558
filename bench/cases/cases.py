"""The benchmark cases.

A turn runs on fresh processes and fresh directories; a case that is a ratio runs both sides in one turn, so that what
else the machine does touches both.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..rig import Bench, Rig
from ..runner import RATIO, Case, Figures, Turns, alone
from .cold_reads import cold_reads
from .lookups import lookups
from .pop import pop
from .request_reply import request_reply

KIB = 1024
SMALL = 100
PRELOAD = 4_000_000
"""Messages that the consuming cases find."""
SENDERS = 64
FIRST_KEYS = 8
"""Keys per queue after which hardly any queue has none."""


def _produce(style: str, size: int) -> Callable[[Rig], Turns]:
    def turn(rig: Rig) -> Figures:
        with rig.cluster() as bench:
            return {"rate": bench.rate(bench.plan("produce", style=style, size=size))}

    return alone(turn)


def _consume(style: str) -> Callable[[Rig], Turns]:
    def turn(rig: Rig) -> Figures:
        with rig.cluster() as bench:
            bench.prepare(bench.plan("produce", style="columnar", size=SMALL, count=PRELOAD))
            # A first consumer, of another group, so that the measured one finds a broker that has served before.
            bench.prepare(bench.plan("consume", consume_style=style, count=PRELOAD // 10))
            return {"rate": bench.run(bench.plan("consume", consume_style=style, count=PRELOAD)).messages_per_s}

    return alone(turn)


def send_latency(rig: Rig) -> Figures:
    """Milliseconds of one acknowledged send after the other."""
    with rig.cluster() as bench:
        plan = bench.plan("produce", style="sync", size=KIB)
        bench.warm(plan)
        found = bench.run(plan).latency_ms
        return {name: float(found[name] or 0.0) for name in ("p50", "p99")}


def safer(rig: Rig, mode: str, replicas: int) -> Figures:
    """What a safer mode costs: its rate, and that as a share of the one without replica and sync."""
    rates = []
    for settings in ({"replicas": 1, "mode": "async"}, {"replicas": replicas, "mode": mode}):
        with rig.cluster(**settings) as bench:  # type: ignore[arg-type]  # by name
            rates.append(bench.rate(bench.plan("produce", style="produce", size=KIB)))
    return {f"rate{RATIO}async": rates[1] / rates[0], "rate": rates[1]}


def waiting_senders(rig: Rig, mode: str = "flush") -> Figures:
    """Messages per second of :data:`SENDERS` that each wait for every message of theirs."""
    rates = {}
    for name, style in (("tasks", "asyncio"), ("threads", "sync")):
        with rig.cluster(mode=mode) as bench:
            rates[name] = bench.rate(bench.plan("produce", style=style, size=KIB, threads=SENDERS))
    return rates


def _many_queues(rig: Rig) -> Figures:
    rates = {}
    for queues in (8, 1000, 10_000):
        with rig.cluster() as bench:
            plan = bench.plan("produce", style="produce", size=KIB, queues=queues)
            # Every queue has its file before: a batch goes to one queue, so that most would make one while measured.
            keys = FIRST_KEYS * queues
            bench.prepare(replace(plan, size=SMALL, keys=keys, count=keys, seconds=None))
            bench.warm(plan)
            _await_files(bench)
            rates[queues] = bench.run(plan).messages_per_s
    return {str(queues): rate for queues, rate in rates.items()} | {
        f"{queues}{RATIO}8": rates[queues] / rates[8] for queues in (1000, 10_000)
    }


def _await_files(bench: Bench) -> None:
    """Wait until no more files of queues come: a thread of the broker makes them, behind their first messages."""
    files = -1
    while (found := sum(1 for _ in bench.cluster.directory.glob("broker-*/store/consumequeue/*/*/*"))) != files:
        files = found
        time.sleep(1.0)


def _memory(rig: Rig) -> Figures:
    with rig.cluster() as bench:
        bench.run(bench.plan("both", style="produce", size=KIB, consumers=1, seconds=max(rig.seconds * 2, 10.0)))
        return {"own memory": rig.costs[-1].own_memory_mib}


def _spark(module: str, name: str, *arguments: object) -> Callable[[Rig], Turns]:
    """The turns that ``name`` of a module of :mod:`penstock.bench.spark` gives, which is imported when it is run."""

    def turns(rig: Rig) -> Turns:
        found: Turns = getattr(importlib.import_module(f"penstock.bench.spark.{module}"), name)(rig, *arguments)
        return found

    return turns


_SPARK_UNITS = {"java": "MiB", "worker": "MiB", "empty batch": "ms", "empty batch to sink": "ms"}
_SPARK_FLOORS = {
    f"topic read{RATIO}Parquet": 0.4,
    f"pruned read{RATIO}Parquet": 0.6,
    f"sink{RATIO}Parquet": 0.6,
    f"exactly-once sink{RATIO}at-least-once": 0.85,
}
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("produce-100b", "Producer.produce per message, 100 B", _produce("produce", SMALL)),
        Case("produce-1k", "Producer.produce per message, 1 KiB", _produce("produce", KIB)),
        Case(
            "produce-many-100b",
            "Producer.produce_many, 10,000 messages of 100 B a call",
            _produce("columnar", SMALL),
        ),
        Case(
            "consume-100b",
            "PullConsumer.poll into Message objects, every body read, 100 B",
            _consume("messages"),
        ),
        Case("poll-batch-100b", "PullConsumer.poll_batch into arrays, 100 B", _consume("arrays")),
        Case("send-latency", "one acknowledged send after the other, 1 KiB", alone(send_latency), "ms"),
        Case(
            "request-reply",
            "one request after the other, 1 KiB, with its reply from another process, beside acknowledged sends",
            alone(request_reply),
            "ms",
        ),
        Case(
            "sync-replica",
            "produce 1 KiB with one synchronous replica, against none",
            alone(partial(safer, mode="sync", replicas=2)),
            floors={f"rate{RATIO}async": 0.5},
        ),
        Case(
            "sync-flush",
            "produce 1 KiB with SYNC_FLUSH, against ASYNC_FLUSH",
            alone(partial(safer, mode="flush", replicas=1)),
            floors={f"rate{RATIO}async": 0.6},
        ),
        Case(
            "sync-flush-64-senders",
            "64 senders that each wait for SYNC_FLUSH, 1 KiB: tasks of an event loop, and threads",
            alone(waiting_senders),
        ),
        Case(
            "many-queues",
            "produce 1 KiB to 8, 1,000 and 10,000 queues that have their files",
            alone(_many_queues),
            floors={f"1000{RATIO}8": 0.98, f"10000{RATIO}8": 0.95},
        ),
        Case(
            "pop",
            "SimpleConsumer.receive and ack of 32 messages of 1 KiB, by four processes",
            alone(pop),
            units={"broker": "µs of CPU per message", "consumer": "µs of CPU per message"},
        ),
        Case(
            "memory",
            "a broker's memory besides mapped pages, highest sample while 1 KiB messages are produced and consumed",
            alone(_memory),
            "MiB",
        ),
        Case(
            "lookups",
            "one message found among 10 million, by its key and by its time, less what a call costs",
            alone(lookups),
            "ms",
            is_heavy=True,
        ),
        Case(
            "cold-reads",
            "one acknowledged send after the other, 1 KiB, while a consumer reads 20 GiB behind, from the disk",
            alone(cold_reads),
            "ms",
            {"read_rate": "MB/s"},
            is_heavy=True,
        ),
        *(
            Case(
                f"spark-{name}-{size}",
                title,
                _spark(name, "turns", body),
                "rows/s",
                _SPARK_UNITS,
                floors=floors,
                is_heavy=True,
            )
            for size, body in (("1k", KIB), ("100b", SMALL))
            for name, title, floors in (
                ("stores", f"Spark over a store of messages of {body} B", {}),
                ("topics", f"Spark over topics of messages of {body} B", _SPARK_FLOORS),
            )
        ),
        Case(
            "spark-large-store",
            "one scan of 20 GiB and 1,024 queues, whose memory must not grow with either",
            _spark("stores", "large"),
            "rows/s",
            _SPARK_UNITS,
            is_heavy=True,
        ),
        Case(
            "spark-audit",
            "judging the history of a drill of 2 million messages",
            _spark("audits", "turns"),
            "rows/s",
            _SPARK_UNITS,
            is_heavy=True,
        ),
    )
}
