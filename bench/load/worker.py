"""``python -m penstock.bench.load.worker``: one process of a load test, led by the lines on its standard input.

It reads its job (one JSON line), answers ``{"ready": …}``, begins at ``go`` and ends early at ``stop`` or when the
input ends, which is also when its starter has died. It writes ``{"progress": …}`` five times a second and at last
``{"result": …}`` or ``{"error": …}``, one JSON line each.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.proto.errors import PenstockError

from .receivers import Intake
from .senders import Load, Note

if TYPE_CHECKING:
    from penstock.client import PullConsumer

PROGRESS_PAUSE_S = 0.2
TOLD = ("sent", "acknowledged", "refused", "unknown", "errors", "failed_uncounted")
"""Of a producer's :class:`.senders.Outcomes`, as they are."""
JOIN_TIMEOUT_S = 5.0
_out = threading.Lock()


def say(**document: Any) -> None:
    """Write one line; nobody may be listening any more."""
    with _out, contextlib.suppress(BrokenPipeError):
        print(json.dumps(document), flush=True)


class Orders:
    """The lines on standard input, read by a thread."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stop = threading.Event()

    def listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                self.go.set()
            elif line.strip() == "stop":
                break
        self.stop.set()
        self.go.set()


Job = Callable[[dict[str, Any], Orders], None]


def follow(roles: dict[str, Job]) -> int:
    """Read the job, do it as its role says, and tell what makes it impossible; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the starter, which says "stop"
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    orders = Orders()
    threading.Thread(target=orders.listen, name="orders", daemon=True).start()
    try:
        roles[job["role"]](job, orders)
    except PenstockError as error:
        say(error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def main() -> int:
    return follow({"produce": produce, "consume": _consume})


def produce(job: dict[str, Any], orders: Orders, note: Note | None = None) -> None:
    """Send one producer's share; ``note`` is told what became of each message, see :class:`.senders.Load`."""
    from penstock.client import Producer
    from penstock.client.aio import AsyncProducer

    settings = {"linger_ms": job["linger_ms"]} if job["linger_ms"] is not None else {}
    awaited = None
    if job["style"] == "asyncio":
        awaited = AsyncProducer(job["namesrv"], group="penstock-load", **settings)
    with awaited.producer if awaited else Producer(job["namesrv"], group="penstock-load", **settings) as producer:
        producer.prepare(job["topic"])
        say(ready=True)
        orders.go.wait()
        load = Load(producer, job, orders.stop, awaited, note)
        began, cpu = time.monotonic_ns(), time.process_time()
        with progress(load.outcomes.progress):
            load.run()
        outcomes = load.outcomes
        say(
            result={
                "began_ns": began,
                "ended_ns": time.monotonic_ns(),
                "cpu_s": time.process_time() - cpu,
                **{name: getattr(outcomes, name) for name in TOLD},
                "failed": {str(stream): numbers for stream, numbers in outcomes.failed.items()},
                "streams": {str(stream): count for stream, count in load.streams().items()},
                "latency": outcomes.latency.to_document(),
            }
        )


def _consume(job: dict[str, Any], orders: Orders) -> None:
    from penstock.client import PullConsumer

    with PullConsumer(job["namesrv"], group=job["group"], consume_from=job["consume_from"]) as consumer:
        consumer.subscribe(job["topic"])
        intake = Intake(consumer, job, orders.stop)
        await_queues(consumer, JOIN_TIMEOUT_S, orders)
        say(ready=True)
        with progress(lambda: {"received": intake.received}):
            intake.run()
    say(
        result={
            "received": intake.received,
            "body_bytes": intake.body_bytes,
            "cpu_s": intake.cpu_s,
            "first_ns": intake.first_ns,
            "last_ns": intake.last_ns,
            "latency": intake.latency.to_document(),
        }
    )


@contextlib.contextmanager
def progress(counts: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Tell ``counts()`` five times a second for the length of the ``with`` block, and once at its end."""
    try:
        with repeating(lambda: say(progress=counts()), PROGRESS_PAUSE_S):
            yield
    finally:
        say(progress=counts())


@contextlib.contextmanager
def repeating(action: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do ``action`` every ``pause_s``, in a thread, for the length of the ``with`` block."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(pause_s):
            action()

    thread = threading.Thread(target=repeat, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def await_queues(consumer: PullConsumer, timeout_s: float, orders: Orders) -> None:
    """Wait until a member of a group has queues: joining takes as long as the members settle.

    A group with more members than queues leaves some without: no longer than ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not consumer.assignment() and time.monotonic() < deadline and not orders.stop.is_set():
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
