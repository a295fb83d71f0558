"""How long a request takes to its reply, beside what one acknowledged send takes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.client import MessageView, Producer, PushConsumer

from ..load.load import ensure_topic
from ..rig import Rig
from ..runner import RATIO

SIZE = 1024
_READY_S = 60.0
_WARM = 100


def request_reply(rig: Rig) -> dict[str, float]:
    """Milliseconds from a request to its reply, from a process of its own; sends alternate with the requests."""
    with rig.cluster() as bench:
        plan = bench.plan("produce", size=SIZE)
        ensure_topic(plan)
        context = multiprocessing.get_context("spawn")
        ready, done = context.Event(), context.Event()
        responder = context.Process(target=_respond, args=(plan.namesrv, plan.topic, ready, done))
        responder.start()
        try:
            ready.wait(_READY_S)
            times_ms = _ask(plan.namesrv, plan.topic, rig.seconds)
        finally:
            done.set()
            responder.join()
        bench.keep_cost()
    (send, _), (p50, p99) = (np.percentile(each, (50, 99)).tolist() for each in times_ms)
    return {"p50": p50, "p99": p99, "send_p50": send, f"send{RATIO}request": send / p50}


def _ask(namesrv: str, topic: str, seconds: float) -> tuple[list[float], list[float]]:
    """The milliseconds of sends and of requests."""
    body, sends, requests = b"x" * SIZE, list[float](), list[float]()
    with Producer(namesrv) as producer:
        producer.prepare(f"{topic}-plain")
        for _ in range(_WARM):
            producer.request(topic, body, timeout_s=_READY_S)
        ends_at = time.perf_counter() + seconds
        while time.perf_counter() < ends_at:
            sends.append(_ms(lambda: producer.send(f"{topic}-plain", body)))
            requests.append(_ms(lambda: producer.request(topic, body)))
    return sends, requests


def _ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _respond(namesrv: str, topic: str, ready: Any, done: Any) -> None:
    with Producer(namesrv) as producer:

        def reply(message: MessageView) -> None:
            producer.reply(message, message.body)

        consumer = PushConsumer(namesrv, group="bench-responder", listener=reply, consume_from="first")
        consumer.subscribe(topic)
        with consumer:
            ready.set()
            done.wait()
