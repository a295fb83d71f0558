"""The load generator as a whole: its conduct and its report, with stand-ins for the worker processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.bench.load.crew import Worker, WorkerFailed
from penstock.bench.load.histogram import Histogram
from penstock.bench.load.ledger import Received, headers_of, numbered_rows
from penstock.bench.load.load import run_load
from penstock.bench.load.plan import LoadPlan
from penstock.bench.report import LoadReport
from tests.support.waiting import wait_until


def latency(value_ms: float) -> dict[str, Any]:
    histogram = Histogram()
    histogram.add(value_ms)
    return histogram.to_document()


class FakeWorker:
    """Has done its job as soon as it is told to begin. ``received``: what a consumer saw, by sequence number."""

    def __init__(self, job: dict[str, Any], received: list[int]) -> None:
        self.job = job
        self.received = received
        self.is_running = job["role"] == "consume"
        self.progress: dict[str, int] = {"received": len(received)} if self.is_running else {}

    def await_ready(self) -> None: ...
    def go(self) -> None: ...
    def kill(self) -> None: ...

    def stop(self) -> None:
        self.is_running = False

    def await_result(self, timeout_s: float) -> dict[str, Any]:
        now = time.monotonic_ns()
        if self.job["role"] == "produce":
            counts = {"sent": 10, "acknowledged": 10, "refused": 0, "unknown": 0, "failed_uncounted": 0}
            times = {"began_ns": now - 2_000_000_000, "ended_ns": now, "cpu_s": 1.0}
            return {**counts, **times, "errors": {}, "failed": {}, "streams": {"0": 10}, "latency": latency(1.5)}
        self._save()
        times = {"first_ns": now - 1_000_000_000, "last_ns": now, "cpu_s": 0.5}
        count = len(self.received)
        return {"received": count, "body_bytes": count * 32, **times, "latency": latency(4.0)}

    def _save(self) -> None:
        seen = Received()
        for offset, sequence in enumerate(self.received):
            rows = numbered_rows(32, self.job["run"], 0, sequence, 1, 0)
            headers, _ = headers_of([rows.tobytes()])
            seen.add(headers, "broker-a", np.array([0], dtype=np.int32), np.array([offset]))
        if self.job["received_path"]:
            seen.save(Path(self.job["received_path"]))


def crew(received: list[int]) -> Callable[[dict[str, Any]], Any]:
    return lambda job: FakeWorker(job, received)


def plan(kind: str, **options: Any) -> LoadPlan:
    return LoadPlan(kind=kind, namesrv="x:1", size=32, count=10, **options)


def run(of: LoadPlan, start: Callable[[dict[str, Any]], Any]) -> LoadReport:
    return run_load(of, start=start, forget=lambda _: None)


def test_both_reports_rates_latency_and_a_clean_verdict() -> None:
    report = run(plan("both", verify=True), crew(list(range(10))))
    assert report.is_clean
    assert (report.count, report.acknowledged, report.lost, report.duplicates) == (10, 10, 0, 0)
    assert report.messages_per_s == pytest.approx(5.0, rel=0.01)
    assert report.bytes_per_s == pytest.approx(160.0, rel=0.01)
    assert report.latency_ms["p50"] == pytest.approx(1.5, rel=0.03)
    assert report.consumed is not None
    assert report.consumed.latency_ms["max"] == 4.0
    assert report.cpu_share["producer-0"] == 0.5


def test_what_api_readers_rely_on_is_in_the_document() -> None:
    document = asdict(run(plan("produce"), crew([])))
    expected = {"count", "acknowledged", "refused", "unknown", "duplicates", "lost", "seconds"}
    assert expected | {"messages_per_s", "bytes_per_s", "latency_ms"} <= set(document)
    assert set(document["latency_ms"]) == {"p50", "p99", "p999", "max"}


def test_a_lost_message_and_a_duplicate_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.bench.load.load.IDLE_S", 0.05)
    report = run(plan("both", verify=True), crew([0, 1, 2, 3, 4, 5, 5, 7, 8, 9]))
    assert (report.lost, report.duplicates, report.stored_twice) == (1, 1, 1)
    assert not report.is_clean


def test_consume_counts_what_was_received() -> None:
    report = run(plan("consume"), crew(list(range(10))))
    assert (report.count, report.acknowledged) == (10, 0)
    assert report.messages_per_s == pytest.approx(10.0, rel=0.01)
    assert report.bytes_per_s == pytest.approx(320.0, rel=0.01)


def test_an_interrupted_load_reports_the_part_that_was_done() -> None:
    class Endless(FakeWorker):
        is_told_to_stop = False

        def go(self) -> None:
            self.is_running = True

        def stop(self) -> None:
            super().stop()
            self.is_told_to_stop = True

    made: list[Endless] = []

    def start(job: dict[str, Any]) -> Any:
        made.append(Endless(job, list(range(10))))
        return made[-1]

    def interrupt(_: str) -> None:
        if not any(worker.is_told_to_stop for worker in made):
            raise KeyboardInterrupt

    report = run_load(plan("both", verify=True), interrupt, start, forget=lambda _: None)
    assert report.interrupted
    assert (report.acknowledged, report.lost) == (10, 0)
    assert not run(plan("produce"), crew([])).interrupted


@pytest.mark.parametrize(("group", "forgotten"), [("", 1), ("mine", 0)])
def test_only_a_group_of_its_own_is_deleted_at_the_end(group: str, forgotten: int) -> None:
    seen: list[str] = []
    run_load(plan("both", group=group), start=crew(list(range(10))), forget=lambda of: seen.append(of.group))
    assert len(seen) == forgotten
    assert all(name.startswith("penstock-load-") for name in seen)


WORKER = """
import json, sys
job = json.loads(sys.stdin.readline())
if job.get("fails"):
    print(json.dumps({"error": "BrokerUnavailable: away"})); sys.exit(1)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if line.strip() == "go":
        print("noise")
        print(json.dumps({"progress": {"sent": 3}}), flush=True)
    else:
        break
print(json.dumps({"result": {"sent": 3}}), flush=True)
if job.get("stays"):
    sys.stdin.read()
"""


@pytest.fixture
def worker_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stand_in_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sys.executable
    return "stand_in_worker"


def test_a_worker_is_led_by_lines(worker_module: str) -> None:
    worker = Worker({"role": "produce", "number": 3}, worker_module)
    try:
        worker.await_ready(20.0)
        worker.go()
        wait_until(lambda: worker.progress.get("sent") == 3, what="the worker's progress")
        worker.stop()
        assert worker.await_result(20.0) == {"sent": 3}
        assert worker.name == "producer-3"
    finally:
        worker.kill()


def test_a_worker_that_told_its_result_and_does_not_end_is_no_success(worker_module: str) -> None:
    worker = Worker({"role": "consume", "number": 1, "stays": True}, worker_module)
    try:
        worker.await_ready(20.0)
        worker.stop()
        wait_until(lambda: worker.result is not None, what="the worker's result")
        with pytest.raises(WorkerFailed, match="consumer-1 told its result, and its process still runs"):
            worker.await_result(0.01)
    finally:
        worker.kill()


def test_a_worker_that_fails_says_why(worker_module: str) -> None:
    worker = Worker({"role": "consume", "number": 0, "fails": True}, worker_module)
    try:
        with pytest.raises(WorkerFailed, match="consumer-0 did not begin: BrokerUnavailable: away"):
            worker.await_ready(20.0)
    finally:
        worker.kill()


def test_a_killed_worker_has_no_result(worker_module: str) -> None:
    worker = Worker({"role": "produce", "number": 0}, worker_module)
    worker.await_ready(20.0)
    worker.kill()
    with pytest.raises(WorkerFailed, match="exit code -9"):
        worker.await_result(20.0)
