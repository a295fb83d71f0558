"""``python -m penstock.drill.load.worker``: one client process of a drill, led as the workers of a load test are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock.bench.load.worker import Orders, await_queues, follow, progress, say
from penstock.judge.history import Recorder

JOIN_TIMEOUT_S = 10.0


def main() -> int:
    """Do the job that the first input line describes."""
    return follow({"produce": _produce, "consume": _consume})


def _recorder(job: dict[str, Any]) -> Recorder:
    return Recorder(Path(job["history"]), job["client"], job["name"], job["shards"])


def _produce(job: dict[str, Any], orders: Orders) -> None:
    from penstock.client import Producer

    from .sending import Load

    recorder = _recorder(job)
    with Producer(job["namesrv"], group="drill-producer") as producer:
        producer.prepare(job["topic"])
        load = Load(producer, job, recorder, orders.stop)
        say(ready=True)
        orders.go.wait()
        counts = load.counts
        with progress(lambda: {name: getattr(counts, name) for name in counts.__slots__}):
            load.run()
    recorder.close()
    say(result={name: getattr(counts, name) for name in counts.__slots__})


def _consume(job: dict[str, Any], orders: Orders) -> None:
    from penstock.client import PullConsumer

    from .receiving import Member

    recorder = _recorder(job)
    with PullConsumer(job["namesrv"], group=job["group"], consume_from="first") as consumer:
        consumer.subscribe(job["topic"])
        await_queues(consumer, JOIN_TIMEOUT_S, orders)
        say(ready=True)
        member = Member(consumer, job["run"], job["shards"], recorder, orders.stop)
        with progress(lambda: {"received": member.received}):
            member.run()
    recorder.close()
    say(result={"received": member.received})


if __name__ == "__main__":
    sys.exit(main())
