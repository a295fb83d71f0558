"""Cases that run beside Kafka and RocketMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from penstock.client import TransactionProducer, TransactionState

from ..cases.cases import KIB, SENDERS, SMALL, safer, send_latency, waiting_senders
from ..load.load import ensure_topic
from ..rig import Rig
from ..runner import RATIO, Case, Figures
from . import proxies, rooms, servers
from .pairs import Side, pairs

PRELOADED = {SMALL: 800_000, KIB: 300_000}
"""Messages for each second of the rig's that the consuming cases find, by their size."""


def _ours_produce(size: int) -> Side:
    def side(rig: Rig) -> Figures:
        rates = {}
        for name, style in (("produce", "produce"), ("produce_many", "columnar")):
            with rig.cluster() as bench:
                rates[name] = bench.rate(bench.plan("produce", style=style, size=size))
        return rates

    return side


def _ours_consume(size: int) -> Side:
    def side(rig: Rig) -> Figures:
        preloaded = _preloaded(size, rig)
        with rig.cluster() as bench:
            bench.prepare(bench.plan("produce", style="columnar", size=size, count=preloaded))
            rates = {}
            for name, style in (("poll", "messages"), ("poll_batch", "arrays")):
                bench.prepare(bench.plan("consume", consume_style=style, count=preloaded // 10))
                plan = bench.plan("consume", consume_style=style, count=preloaded)
                rates[name] = bench.run(plan).messages_per_s
            return rates

    return side


def _ours_send(rig: Rig) -> Figures:
    return {f"send {name}": value for name, value in send_latency(rig).items()}


def _ours_transactions(rig: Rig) -> Figures:
    """Transactions of one message a second, each committed before the next."""
    with rig.cluster() as bench:
        plan = bench.plan("produce", size=SMALL)
        ensure_topic(plan)
        with TransactionProducer(plan.namesrv, group="bench", check=lambda _: TransactionState.UNKNOWN) as producer:
            for seconds in (rig.seconds / 4, rig.seconds):  # what the first ones open is not measured
                began, count = time.monotonic(), 0
                while time.monotonic() - began < seconds:
                    producer.send_in_transaction(plan.topic, bytes(SMALL), execute=lambda _: TransactionState.COMMIT)
                    count += 1
                rate = count / (time.monotonic() - began)
        bench.keep_cost()
    return {"transactions": rate}


def _preloaded(size: int, rig: Rig) -> int:
    return int(PRELOADED[size] * rig.seconds)


def _kafka(kind: str, size: int, names: dict[str, str], replicas: int = 1) -> Side:
    """What a load by librdkafka tells, under other names."""

    def side(rig: Rig) -> Figures:
        program = [rooms.kafka().python, str(Path(__file__).with_name("kafka_load.py"))]
        messages = _preloaded(size, rig) if kind == "consume" else 0
        with servers.kafka(rig, replicas) as address:
            rig.progress(f"Kafka: {kind}")
            job = [address, kind, str(size), str(rig.seconds), str(messages)]
            found = servers.told_by([*program, *job], 2 * rig.seconds)
        return {name: found[told] for told, name in names.items()}

    return side


def _ours_replicated(rig: Rig) -> Figures:
    found = safer(rig, "sync", 2)
    return {"replicated": found["rate"], "share kept": found[f"rate{RATIO}async"]}


def _kafka_replicated(rig: Rig) -> Figures:
    """``acks=all`` to two replicas, and which share of the rate without replica that is."""
    rates = [
        _kafka(kind, KIB, {"rate": KAFKA}, replicas)(rig)[KAFKA]
        for kind, replicas in (("produce", 1), ("replicated", 2))
    ]
    return {KAFKA: rates[1], f"{KAFKA}'s share kept": rates[1] / rates[0]}


def _rocketmq(kind: str, threads: int, size: int, *, flush: bool = False) -> Side:
    """What a load by RocketMQ's classic client tells."""

    def side(rig: Rig) -> Figures:
        room = rooms.rocketmq()
        program = [room.java, f"-Duser.home={rooms.ROOM}", "-cp", room.jars]
        program.append(str(Path(__file__).with_name("RocketLoad.java")))
        with servers.rocketmq(rig, flush=flush) as names:
            rig.progress(f"RocketMQ: {kind}")
            job = [names, kind, str(threads), str(size), str(rig.seconds)]
            return {ROCKETMQ: servers.told_by([*program, *job], 2 * rig.seconds)["rate"]}

    return side


KAFKA, TUNED, ROCKETMQ = "librdkafka", "tuned librdkafka", "RocketMQ"
_LATENCIES = (("librdkafka p50", "send p50"), ("librdkafka p99", "send p99"))


def _cases() -> Iterator[Case]:
    for size, named, goals in (
        (SMALL, "100b", {"produce": 1.2, "produce_many": 2.0}),
        (KIB, "1k", {"produce": 1.3, "produce_many": 1.3}),
    ):
        yield Case(
            f"kafka-produce-{named}",
            f"produce and produce_many of {size} B, beside librdkafka and Kafka",
            pairs(
                _ours_produce(size),
                _kafka("produce", size, {"rate": KAFKA}),
                [(ours, KAFKA) for ours in ("produce", "produce_many")],
                rooms.kafka,
            ),
            floors={f"{ours}{RATIO}{KAFKA}": goal for ours, goal in goals.items()},
            is_heavy=True,
        )
    for size, named, goals in (
        (SMALL, "100b", {f"poll{RATIO}{TUNED}": 1.2}),
        (KIB, "1k", {f"poll{RATIO}{KAFKA}": 1.0, f"poll_batch{RATIO}{KAFKA}": 2.0}),
    ):
        yield Case(
            f"kafka-consume-{named}",
            f"poll into objects whose bodies are read, and poll_batch, of {size} B, beside librdkafka and Kafka",
            pairs(
                _ours_consume(size),
                _kafka("consume", size, {"default": KAFKA, "tuned": TUNED}),
                [(ours, theirs) for ours in ("poll", "poll_batch") for theirs in (KAFKA, TUNED)],
                rooms.kafka,
            ),
            floors=goals,
            is_heavy=True,
        )
    yield Case(
        "kafka-send-latency",
        "one acknowledged send after the other, 1 KiB, beside librdkafka and Kafka",
        pairs(
            _ours_send, _kafka("send", KIB, {"p50": "librdkafka p50", "p99": "librdkafka p99"}), _LATENCIES, rooms.kafka
        ),
        unit="ms",
        floors={f"librdkafka p50{RATIO}send p50": 0.77},
        is_heavy=True,
    )
    yield Case(
        "kafka-replicated",
        "produce of 1024 B that a second broker has before it is acknowledged, beside librdkafka with acks=all",
        pairs(
            _ours_replicated,
            _kafka_replicated,
            [("replicated", KAFKA), ("share kept", f"{KAFKA}'s share kept")],
            rooms.kafka,
        ),
        units={"share kept": "", f"{KAFKA}'s share kept": ""},
        floors={f"replicated{RATIO}{KAFKA}": 1.0},
        is_heavy=True,
    )
    for mode, named, goals in (("async", "", {"tasks": 2.0}), ("flush", "-flush", {"tasks": 1.5})):
        words = "SYNC_FLUSH" if mode == "flush" else "ASYNC_FLUSH"
        yield Case(
            f"rocketmq-waiting-senders{named}",
            f"{SENDERS} senders that each wait, 1 KiB, {words}: tasks and threads, beside threads of RocketMQ's client",
            pairs(
                partial(waiting_senders, mode=mode),
                _rocketmq("send", SENDERS, KIB, flush=mode == "flush"),
                [(ours, ROCKETMQ) for ours in ("tasks", "threads")],
                rooms.rocketmq,
            ),
            floors={f"{ours}{RATIO}{ROCKETMQ}": goal for ours, goal in {**goals, "threads": 1.0}.items()},
            is_heavy=True,
        )
    yield Case(
        "rocketmq-transactions",
        f"transactions of one message of {SMALL} B, one after the other, beside RocketMQ's client",
        pairs(
            _ours_transactions,
            _rocketmq("transactions", 1, SMALL),
            [("transactions", ROCKETMQ)],
            rooms.rocketmq,
        ),
        is_heavy=True,
    )


PEERS: dict[str, Case] = {case.name: case for case in (*_cases(), *proxies.cases())}
