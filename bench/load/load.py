"""The load generator: starts producer and consumer processes, watches them, and puts their results together."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.proto.errors import GroupNotFound, InvalidArgument, PenstockError, TopicExists

from ..report import LoadReport, report_on
from .crew import Worker, finished
from .plan import LoadPlan

log = logging.getLogger(__name__)

FORGET_TIMEOUT_S = 5.0
IDLE_S = 5.0
"""Consumers that received nothing for this long have received everything."""
END_TIMEOUT_S = 120.0
_PAUSE_S = 0.05

Progress = Callable[[str], None]


def forget_group(plan: LoadPlan) -> None:
    """Delete the group of the load test with its offsets, where brokers are left to do so."""
    from penstock.client import Admin
    from penstock.client.cluster import again

    with Admin(plan.namesrv) as admin:
        try:
            # A killed member counts until its broker has noticed.
            again(lambda: admin.delete_group(plan.group), FORGET_TIMEOUT_S, InvalidArgument)
        except GroupNotFound:
            return
        except PenstockError as error:
            log.warning("group of the load test not deleted group=%s error=%s", plan.group, error.message)


def run_load(
    plan: LoadPlan,
    progress: Progress = lambda _: None,
    start: Callable[..., Worker] = Worker,
    forget: Callable[[LoadPlan], None] = forget_group,
) -> LoadReport:
    """Do what ``plan`` says and report.

    Ctrl-C ends the sending early, and what was sent is received and reported; the second one ends the receiving too.
    A group that was made up for the test is deleted at its end.

    Raises:
        PenstockError: no nameserver, topic refused, or a process ended without a result.
    """
    has_passing_group = plan.kind != "produce" and not plan.group
    if has_passing_group:
        plan = replace(plan, group=f"penstock-load-{plan.run:08x}")
    if plan.kind == "both":
        # Old messages of the topic are not part of the test; the clocks of all brokers may be a little apart.
        plan = replace(plan, consume_from=int(time.time() * 1000) - 1000)
    crew: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="penstock-load-") as scratch:
        paths = [Path(scratch) / f"seen-{number}.npy" for number in range(plan.consumers) if plan.kind != "produce"]
        try:
            jobs = [plan.consumer_job(number, path) for number, path in enumerate(paths)]
            first_producer = len(jobs)
            jobs += [plan.share(number) for number in range(plan.producers) if plan.kind != "consume"]
            for job in jobs:
                crew.append(start(job))
            for worker in crew:
                worker.await_ready()
            seen = paths if plan.verify else []
            return _conduct(plan, crew[first_producer:], crew[:first_producer], seen, progress)
        finally:
            for worker in crew:
                worker.kill()
            if has_passing_group:
                forget(plan)


def ensure_topic(plan: LoadPlan) -> None:
    """Create the topic if it does not exist; an existing one keeps its shape."""
    from penstock.client import Admin

    with Admin(plan.namesrv) as admin, contextlib.suppress(TopicExists):
        admin.create_topic(plan.topic, queues=plan.queues)


def _conduct(
    plan: LoadPlan, producers: list[Worker], consumers: list[Worker], paths: list[Path], progress: Progress
) -> LoadReport:
    began = time.monotonic()
    interrupted = False
    try:
        for worker in producers:
            worker.go()
        while any(worker.is_running for worker in producers):
            progress(_line(producers, consumers, began))
            time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        interrupted = True
        for worker in producers:
            worker.stop()
    produced = [worker.await_result(END_TIMEOUT_S) for worker in producers]
    wanted = sum(result["acknowledged"] for result in produced) if producers else plan.count
    if consumers:
        try:
            _await_received(plan, consumers, wanted, began, progress)
        except KeyboardInterrupt:
            interrupted = True
            paths = []  # what was not received is not lost
            progress("stopping")
    consumed = finished(consumers, END_TIMEOUT_S)
    return replace(report_on(plan, produced, consumed, paths), interrupted=interrupted)


def _await_received(
    plan: LoadPlan, consumers: Sequence[Worker], wanted: int | None, began: float, progress: Progress
) -> None:
    """Return when enough was received, the time is up, or nothing comes any more."""
    last, changed = -1, time.monotonic()
    while any(worker.is_running for worker in consumers):
        received = _received(consumers)
        now = time.monotonic()
        if received != last:
            last, changed = received, now
        if wanted is not None and received >= wanted:
            return
        if plan.kind == "consume" and plan.seconds is not None and now - began >= plan.seconds:
            return
        if now - changed >= IDLE_S and (received or plan.seconds is None):
            return
        progress(_line((), consumers, began))
        time.sleep(_PAUSE_S)


def _received(consumers: Sequence[Worker]) -> int:
    return sum(worker.progress.get("received", 0) for worker in consumers)


def _line(producers: Sequence[Worker], consumers: Sequence[Worker], began: float) -> str:
    elapsed = max(time.monotonic() - began, 1e-9)
    parts = [f"{elapsed:6.1f} s"]
    if producers:
        sent = sum(worker.progress.get("sent", 0) for worker in producers)
        parts.append(f"sent {sent:,} ({sent / elapsed:,.0f}/s)")
        failed = sum(worker.progress.get("failed", 0) for worker in producers)
        if failed:
            parts.append(f"failed {failed:,}, {next(filter(None, (w.progress.get('why') for w in producers)), '')}")
    if consumers:
        parts.append(f"received {_received(consumers):,}")
    return "  ".join(parts)
