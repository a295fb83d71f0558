"""``python -m penstock.drill.load.worker``: one client process that leaves a history, led as those of a load test are.

A job of role ``produce`` that names a style is a load test's; the others are a drill's.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.bench.load import worker
from penstock.bench.load.senders import Load
from penstock.bench.load.worker import Orders, await_queues, follow, progress, say
from penstock.judge.history import Recorder

from .sending import Notes

JOIN_TIMEOUT_S = 10.0
SHARES = (("async", 1, True, 30), ("async", 1, False, 20), ("sync", 10, False, 20), ("sync", 1, True, 10))
"""What a drill's producer sends beside each other: style, messages of a call, True if keyed, share of the rate in %."""
BUFFERED = ("produce", 1, True, 20)
"""The last share: nobody waits for a receipt, ``on_delivery`` is told."""


def main() -> int:
    return follow({"produce": _produce, "consume": _consume, "promise": _promise, "work": _work, "pop": _pop})


@contextmanager
def _recorder(job: dict[str, Any], name: str, client: int) -> Iterator[Recorder]:
    with closing(Recorder(Path(job["history"]) / f"{name}.history", client, name, job["shards"])) as made:
        yield made


def _produce(job: dict[str, Any], orders: Orders) -> None:
    if "style" in job:
        with _recorder(job, f"producer-{job['number']}", job["number"]) as recorder:
            worker.produce(job, orders, Notes(recorder, job["shards"], job["keys"]))
    else:
        with _recorder(job, job["name"], job["client"]) as recorder:
            _send_shares(job, orders, recorder)


def _send_shares(job: dict[str, Any], orders: Orders, recorder: Recorder) -> None:
    """Send at a steady pace; what is held up while a shard is away follows when it is back."""
    from penstock.client import Producer

    jobs = [_share(job, number, *share) for number, share in enumerate((*SHARES, BUFFERED))]
    notes = [Notes(recorder, job["shards"], each["keys"]) for each in jobs]

    def counts() -> dict[str, int]:
        total: Counter[str] = Counter()
        for note in notes:
            total.update(asdict(note.counts))
        return dict(total)

    with Producer(job["namesrv"], group="drill-producer", on_delivery=notes[-1].on_delivery) as producer:
        producer.prepare(job["topic"])
        loads = [Load(producer, each, orders.stop, note=note) for each, note in zip(jobs, notes, strict=True)]
        threads = [threading.Thread(target=load.run, name=f"load-{number}") for number, load in enumerate(loads)]
        say(ready=True)
        orders.go.wait()
        with progress(counts):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    say(result=counts())


def _share(job: dict[str, Any], number: int, style: str, batch: int, is_keyed: bool, percent: int) -> dict[str, Any]:
    """The job of one of a producer's shares."""
    fixed = {"verify": True, "threads": 1, "count": None, "seconds": None, "probe": False}
    number += job["number"] * (len(SHARES) + 1)
    keys, rate = job["keys"] if is_keyed else 0, job["rate"] * percent / 100
    return job | fixed | {"number": number, "style": style, "effective_batch": batch, "keys": keys, "rate": rate}


def _consume(job: dict[str, Any], orders: Orders) -> None:
    from penstock.client import PullConsumer

    from .receiving import Member

    with (
        _recorder(job, job["name"], job["client"]) as recorder,
        PullConsumer(job["namesrv"], group=job["group"], consume_from="first") as consumer,
    ):
        consumer.subscribe(job["topic"])
        await_queues(consumer, JOIN_TIMEOUT_S, orders)
        say(ready=True)
        member = Member(consumer, job["run"], job["shards"], recorder, orders.stop)
        with progress(lambda: {"received": member.received}):
            member.run()
    say(result={"received": member.received})


def _promise(job: dict[str, Any], orders: Orders) -> None:
    from .promising import Promising

    with (
        _recorder(job, job["name"], job["client"]) as recorder,
        closing(Promising(job["namesrv"], job["promises"], job["run"], recorder, orders.stop)) as made,
    ):
        say(ready=True)
        orders.go.wait()
        made.run()
    say(result={})


def _work(job: dict[str, Any], orders: Orders) -> None:
    from .working import Working

    with _recorder(job, job["name"], job["client"]) as recorder:
        made = Working(job["namesrv"], job["orderly_group"], job["topic"], job["run"], job["shards"], recorder)
        with closing(made):
            made.start()
            say(ready=True)
            orders.stop.wait()
    say(result={})


def _pop(job: dict[str, Any], orders: Orders) -> None:
    from .popping import Popping

    with (
        _recorder(job, job["name"], job["client"]) as recorder,
        closing(Popping(job["namesrv"], job["pop_group"], job["topic"], job["run"], recorder)) as made,
    ):
        say(ready=True)
        made.run(orders.stop)
    say(result={})


if __name__ == "__main__":
    sys.exit(main())
