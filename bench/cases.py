"""The benchmark cases: what each measures, and the figures that it has to reach.

Each repetition of a case runs on fresh processes and fresh directories; a case that is a ratio runs both sides in
one repetition, so that what else the machine does touches both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.proto.errors import PenstockError

from .cold_reads import cold_reads
from .load.load import ensure_topic, run_load
from .lookups import lookups
from .report import LoadReport
from .rig import Rig

KIB = 1024
SMALL = 100
PRELOAD = 4_000_000
"""Messages that the consuming cases find."""
FIRST_KEYS = 8
"""Keys per queue after which hardly any queue has none."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a case. ``floor`` has to be reached: from above, or with ``at_most`` from below."""

    name: str
    unit: str
    floor: float
    target: str
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        """True if ``value`` reaches the floor."""
        return value <= self.floor if self.at_most else value >= self.floor


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark. ``run`` does one repetition and gives a value for each measure.

    ``is_heavy``: takes minutes or tens of gigabytes, so it runs only when it is named.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    run: Callable[[Rig], dict[str, float]]
    is_heavy: bool = False


def _rate(report: LoadReport) -> float:
    if report.refused or report.unknown:
        raise PenstockError(f"no figure: {report.refused} refused, {report.unknown} unknown: {report.errors}")
    return report.messages_per_s


def _produce(style: str, size: int) -> Callable[[Rig], dict[str, float]]:
    def run(rig: Rig) -> dict[str, float]:
        with rig.cluster() as bench:
            plan = bench.plan("produce", style=style, size=size)
            bench.warm(plan)
            return {"rate": _rate(bench.run(plan))}

    return run


def _consume(style: str) -> Callable[[Rig], dict[str, float]]:
    def run(rig: Rig) -> dict[str, float]:
        with rig.cluster() as bench:
            bench.run(bench.plan("produce", style="columnar", size=SMALL, count=PRELOAD))
            bench.rig.costs.pop()
            # A first consumer, of another group, so that the measured one finds a broker that has served before.
            bench.run(bench.plan("consume", consume_style=style, count=PRELOAD // 10))
            bench.rig.costs.pop()
            return {"rate": _rate(bench.run(bench.plan("consume", consume_style=style, count=PRELOAD)))}

    return run


def _send_latency(rig: Rig) -> dict[str, float]:
    with rig.cluster() as bench:
        plan = bench.plan("produce", style="sync", size=KIB)
        bench.warm(plan)
        report = bench.run(plan)
        _rate(report)
        return {name: float(report.latency_ms[name] or 0.0) for name in ("p50", "p99")}


def _produce_on(rig: Rig, *, replicas: int = 1, mode: str = "async") -> float:
    with rig.cluster(replicas=replicas, mode=mode) as bench:
        plan = bench.plan("produce", style="produce", size=KIB)
        bench.warm(plan)
        return _rate(bench.run(plan))


def _sync_replica(rig: Rig) -> dict[str, float]:
    alone, together = _produce_on(rig), _produce_on(rig, replicas=2, mode="sync")
    return {"ratio": together / alone, "rate": together}


def _sync_flush(rig: Rig) -> dict[str, float]:
    plain, synced = _produce_on(rig), _produce_on(rig, mode="flush")
    return {"ratio": synced / plain, "rate": synced}


def _waiting_senders(rig: Rig) -> dict[str, float]:
    with rig.cluster(mode="flush") as bench:
        rates = {}
        for name, style in (("threads", "sync"), ("tasks", "asyncio")):
            plan = bench.plan("produce", style=style, size=KIB, threads=64)
            bench.warm(plan)
            rates[name] = _rate(bench.run(plan))
        return rates


def _many_queues(rig: Rig) -> dict[str, float]:
    def rate_with(queues: int) -> float:
        with rig.cluster() as bench:
            plan = bench.plan("produce", style="produce", size=KIB, queues=queues)
            # Every queue has its file before: a batch goes to one queue, so that most would make one while measured.
            ensure_topic(plan)
            keys = FIRST_KEYS * queues
            run_load(replace(plan, size=SMALL, keys=keys, count=keys, seconds=None))
            bench.warm(plan)
            return _rate(bench.run(plan))

    rates = {queues: rate_with(queues) for queues in (8, 1000, 10_000)}
    found = {f"rate_{queues}": rate for queues, rate in rates.items()}
    return {**found, "ratio_1000": rates[1000] / rates[8], "ratio_10000": rates[10_000] / rates[8]}


def _memory(rig: Rig) -> dict[str, float]:
    with rig.cluster() as bench:
        bench.run(bench.plan("both", style="produce", size=KIB, consumers=1, seconds=max(rig.seconds * 2, 10.0)))
        return {"own_memory": rig.costs[-1].own_memory_mib}


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "produce-100b",
            "Producer.produce per message, 100 B",
            (Measure("rate", "messages/s", 450_000, "1.1 × librdkafka"),),
            _produce("produce", SMALL),
        ),
        Case(
            "produce-1k",
            "Producer.produce per message, 1 KiB",
            (Measure("rate", "messages/s", 250_000, "1.2 × librdkafka"),),
            _produce("produce", KIB),
        ),
        Case(
            "produce-many-100b",
            "Producer.produce_many, 10,000 messages of 100 B a call",
            (Measure("rate", "messages/s", 2_000_000, "5 × librdkafka"),),
            _produce("columnar", SMALL),
        ),
        Case(
            "consume-100b",
            "PullConsumer.poll into Message objects, every body read, 100 B",
            (Measure("rate", "messages/s", 750_000, "1.1 × tuned librdkafka"),),
            _consume("messages"),
        ),
        Case(
            "poll-batch-100b",
            "PullConsumer.poll_batch into arrays, 100 B",
            (Measure("rate", "messages/s", 4_000_000, "5 × librdkafka"),),
            _consume("arrays"),
        ),
        Case(
            "send-latency",
            "one acknowledged send after the other, 1 KiB",
            (
                Measure("p50", "ms", 0.8, "0.4", at_most=True),
                Measure("p99", "ms", 3.0, "1.5", at_most=True),
            ),
            _send_latency,
        ),
        Case(
            "sync-replica",
            "produce 1 KiB with one synchronous replica, against none",
            (Measure("ratio", "of async", 0.5, "0.7"), Measure("rate", "messages/s", 0, "")),
            _sync_replica,
        ),
        Case(
            "sync-flush",
            "produce 1 KiB with SYNC_FLUSH, against ASYNC_FLUSH",
            (Measure("ratio", "of async", 0.6, "0.85"), Measure("rate", "messages/s", 0, "")),
            _sync_flush,
        ),
        Case(
            "sync-flush-64-senders",
            "64 senders that each wait for SYNC_FLUSH, 1 KiB: tasks of an event loop, and threads",
            (Measure("tasks", "messages/s", 5_000, "11,500 (RocketMQ)"), Measure("threads", "messages/s", 0, "")),
            _waiting_senders,
        ),
        Case(
            "many-queues",
            "produce 1 KiB to 8, 1,000 and 10,000 queues that have their files",
            (
                Measure("ratio_1000", "of 8 queues", 0.8, "0.95"),
                Measure("ratio_10000", "of 8 queues", 0.8, "0.95"),
                Measure("rate_8", "messages/s", 0, ""),
                Measure("rate_1000", "messages/s", 0, ""),
                Measure("rate_10000", "messages/s", 0, ""),
            ),
            _many_queues,
        ),
        Case(
            "memory",
            "a broker's memory besides mapped pages, highest sample while 1 KiB messages are produced and consumed",
            (Measure("own_memory", "MiB", 300, "200", at_most=True),),
            _memory,
        ),
        Case(
            "lookups",
            "one message found among 10 million, by its key and by its time, less what a call costs",
            (
                Measure("key", "ms", 5.0, "", at_most=True),
                Measure("time", "ms", 2.0, "", at_most=True),
                Measure("key_p50", "ms", 0, ""),
                Measure("key_p99", "ms", 0, ""),
                Measure("time_p50", "ms", 0, ""),
                Measure("time_p99", "ms", 0, ""),
                Measure("call_p50", "ms", 0, ""),
                Measure("call_p99", "ms", 0, ""),
            ),
            lookups,
            is_heavy=True,
        ),
        Case(
            "cold-reads",
            "one acknowledged send after the other, 1 KiB, while a consumer reads 20 GiB behind, from the disk",
            (
                Measure("added", "ms", 20.0, "", at_most=True),
                Measure("p99", "ms", 0, ""),
                Measure("p99_alone", "ms", 0, ""),
                Measure("max", "ms", 0, ""),
                Measure("late_p99", "ms", 0, ""),
                Measure("late_max", "ms", 0, ""),
                Measure("read_rate", "MB/s", 0, ""),
            ),
            cold_reads,
            is_heavy=True,
        ),
    )
}
