"""What a broker gives to simple consumers: messages received and acknowledged, 32 at a time, by some processes."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from penstock.client import SimpleConsumer
from penstock.proto.errors import PenstockError

from ..load.load import ensure_topic
from ..machine import cpu_s
from ..rig import Rig

SIZE = 1024
TOGETHER = 32
CONSUMERS = 4
PRELOAD_PER_S = 150_000
"""Messages for each second of the rig's: more than are received."""
_READY_S = 60.0
_WARM = 20


def pop(rig: Rig) -> dict[str, float]:
    """Messages per second that ``CONSUMERS`` processes receive and acknowledge, and the microseconds of processor time
    that the broker and the consumers have of each."""
    count = int(PRELOAD_PER_S * rig.seconds)
    with rig.cluster() as bench:
        plan = bench.plan("produce", style="columnar", size=SIZE, count=count)
        ensure_topic(plan)
        bench.prepare(plan)
        brokers = bench.brokers()
        context = multiprocessing.get_context("spawn")
        ready, told = context.Barrier(CONSUMERS + 1), context.Queue()
        arguments = (plan.namesrv, plan.topic, rig.seconds, ready, told)
        consumers = [context.Process(target=_consume, args=arguments) for _ in range(CONSUMERS)]
        for consumer in consumers:
            consumer.start()
        try:
            ready.wait(_READY_S)
            before = cpu_s(*brokers)
            found = [told.get(timeout=rig.seconds + _READY_S) for _ in consumers]
            broker_s = cpu_s(*brokers) - before
        finally:
            for consumer in consumers:
                consumer.join(_READY_S)
                consumer.kill()
        bench.keep_cost()
    received = sum(each for each, _, _ in found)
    if not received:
        raise PenstockError("no figure: nothing was received")
    return {
        "rate": sum(each / seconds for each, seconds, _ in found),
        "broker": broker_s / received * 1e6,
        "consumer": sum(cpu_s for _, _, cpu_s in found) / received * 1e6,
    }


def _consume(namesrv: str, topic: str, seconds: float, ready: Any, told: Any) -> None:
    """Tell how many messages it was, in how many seconds, and the processor time."""
    with SimpleConsumer(namesrv, group="bench-pop", consume_from="first") as consumer:
        consumer.subscribe(topic)

        def turn() -> int:
            messages = consumer.receive(TOGETHER)
            if messages:
                consumer.ack(messages)
            return len(messages)

        for _ in range(_WARM):
            turn()
        ready.wait(_READY_S)
        began, cpu_began, received = time.monotonic(), time.process_time(), 0
        while time.monotonic() - began < seconds and (count := turn()):
            received += count
        told.put((received, time.monotonic() - began, time.process_time() - cpu_began))
