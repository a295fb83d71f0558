"""Many clients that do little, and many groups that are only known."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from penstock.client import Admin, Producer, PullConsumer

from ..cases.lookups import timed
from ..load.load import ensure_topic
from ..machine import cpu_s
from ..rig import Bench, Rig
from ..runner import Figures
from .stores import LOOKUPS, memory_mib, started

PROCESSES = 4
"""Clients are spread over so many; each process makes its clients one after the other."""
EACH_S = 1.0
"""Each client does something so often."""
READY_S = 600.0
BODY = bytes(100)
GROUP = "bench-slow"

UNITS = {"broker": "ms of CPU a second", "memory": "MiB", "send": "ms", "joined": "s"}


def producers(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many producers, each with its own connections, that send one message a second each."""
    for size in sizes:
        yield _with_clients(rig, size, _send_slowly, queues=8)


def consumers(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many members of one group with a queue each, that poll once a second each."""
    for size in sizes:
        yield _with_clients(rig, size, _poll_slowly, queues=max(size, 8))


def _with_clients(rig: Rig, size: int, work: Callable[..., None], queues: int) -> Figures:
    """What the broker needs for them and what one send beside them takes; ``joined``: until the last one serves."""
    context = multiprocessing.get_context("spawn")
    with rig.cluster() as bench:
        plan = bench.plan("produce", queues=queues)
        ensure_topic(plan)
        shares = [size // PROCESSES + (number < size % PROCESSES) for number in range(PROCESSES)]
        shares = [share for share in shares if share]
        ready, done = context.Barrier(len(shares) + 1), context.Event()
        workers = [
            context.Process(target=work, args=(plan.namesrv, plan.topic, share, ready, done)) for share in shares
        ]
        began = time.monotonic()
        for worker in workers:
            worker.start()
        try:
            ready.wait(READY_S)
            joined = time.monotonic() - began
            found = _beside(bench, rig.seconds)
        finally:
            done.set()
            for worker in workers:
                worker.join(READY_S)
                worker.kill()
    return {**found, "joined": joined}


def _beside(bench: Bench, seconds: float) -> Figures:
    """Processor time and memory of the broker for some seconds, in which single sends wait, one each 10 ms."""
    brokers = bench.brokers()
    plan = bench.plan("produce")
    with Producer(plan.namesrv, group="bench-growth") as producer:
        producer.send(plan.topic, BODY)
        before, began = cpu_s(*brokers), time.monotonic()

        def send() -> None:
            time.sleep(0.01)
            producer.send(plan.topic, BODY)

        send_ms = timed(send, int(seconds * 50))["p50"] - 10
        cpu_ms = (cpu_s(*brokers) - before) / (time.monotonic() - began) * 1000
    return {"broker": cpu_ms, "memory": memory_mib(bench), "send": max(send_ms, 0.0)}


def _send_slowly(namesrv: str, topic: str, count: int, ready: Any, done: Any) -> None:
    made = [Producer(namesrv, group=GROUP) for _ in range(count)]
    for each in made:
        each.send(topic, BODY)
    _slowly([partial(each.send, topic, BODY) for each in made], ready, done)
    for each in made:
        each.close()


def _poll_slowly(namesrv: str, topic: str, count: int, ready: Any, done: Any) -> None:
    made = [PullConsumer(namesrv, group=GROUP, consume_from="last") for _ in range(count)]
    for each in made:
        each.subscribe(topic)
    ends_at = time.monotonic() + READY_S
    while not all(each.assignment() for each in made) and time.monotonic() < ends_at:
        for each in made:
            each.poll(timeout_s=0.0)
        time.sleep(0.05)
    _slowly([partial(each.poll, 0.0) for each in made], ready, done)
    for each in made:
        each.close(timeout_s=5.0)


def _slowly(calls: Sequence[Callable[[], object]], ready: Any, done: Any) -> None:
    """Make each call once a second, evenly spread, until it is done."""
    ready.wait(READY_S)
    turn = 0
    began = time.monotonic()
    while not done.wait(max(began + turn * EACH_S / len(calls) - time.monotonic(), 0.0)):
        calls[turn % len(calls)]()
        turn += 1


GROUPS_UNITS = {"listing": "ms", "lag of one": "ms", "start": "s", "memory": "MiB"}


def groups(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many groups that have committed an offset in each of eight queues."""
    with rig.cluster() as bench:
        plan = bench.plan("produce")
        ensure_topic(plan)
        made = 0
        for size in sizes:
            with Admin(plan.namesrv) as admin, ThreadPoolExecutor(8, "bench-groups") as threads:
                list(threads.map(partial(_commit, admin, plan.topic), range(made, size)))
                made = size
            start = started(bench)
            with Admin(plan.namesrv) as admin:
                listing = timed(admin.list_groups, LOOKUPS)
                lag = timed(lambda admin=admin: admin.group_lag("bench-0"), LOOKUPS)  # type: ignore[misc]
            yield {
                "listing": listing["p50"],
                "lag of one": lag["p50"],
                "start": start,
                "memory": memory_mib(bench),
            }


def _commit(admin: Admin, topic: str, number: int) -> None:
    admin.create_group(f"bench-{number}")
    admin.reset_offset(f"bench-{number}", topic, "first")
