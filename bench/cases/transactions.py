"""What a transaction costs: messages that are committed, against plain ones, by one producer."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.client import TransactionProducer, TransactionState

from ..load.load import ensure_topic
from ..rig import Rig
from ..runner import RATIO

SIZE = 100
TOGETHER = 10_000
"""Messages of one transaction of the batches."""
ROUNDS = 10
"""Plain ones and transactions take turns so often in the rig's time."""


def transactions(rig: Rig) -> dict[str, float]:
    """Committed messages per second, buffered ``TOGETHER`` and one by one, and both as a share of plain ones."""
    body = bytes(SIZE)
    with rig.cluster() as bench:
        plan = bench.plan("produce", style="produce", size=SIZE)
        ensure_topic(plan)
        with TransactionProducer(plan.namesrv, group="bench", check=lambda _: TransactionState.UNKNOWN) as producer:

            def plain() -> None:
                for _ in range(TOGETHER):
                    producer.produce(plan.topic, body)
                producer.flush()

            def committed() -> None:
                with producer.transaction() as transaction:
                    for _ in range(TOGETHER):
                        transaction.produce(plan.topic, body)

            def send() -> None:
                producer.send(plan.topic, body)

            def send_committed() -> None:
                producer.send_in_transaction(plan.topic, body, execute=lambda _: TransactionState.COMMIT)

            def send_awaited() -> None:
                with producer.transaction() as transaction:
                    transaction.send(plan.topic, body)

            batches = _rates(rig.seconds, (plain, committed))
            singles = _rates(rig.seconds, (send, send_committed, send_awaited))
        bench.keep_cost()
    return {
        f"committed{RATIO}plain": batches[1] / batches[0],
        f"single{RATIO}send": singles[1] / singles[0],
        "committed": batches[1] * TOGETHER,
        f"awaited{RATIO}send": singles[2] / singles[0],
        "single": singles[1],
        "awaited": singles[2],
    }


def _rates(seconds: float, calls: tuple[Callable[[], None], ...]) -> list[float]:
    """Calls per second of each, which take turns; what the first ones open is not measured."""
    counts, spent = [0] * len(calls), [0.0] * len(calls)
    for turn in range(ROUNDS + 1):
        for number, call in enumerate(calls):
            began = time.monotonic()
            done = 0
            while time.monotonic() - began < seconds / ROUNDS:
                call()
                done += 1
            if turn:
                counts[number] += done
                spent[number] += time.monotonic() - began
    return [count / busy for count, busy in zip(counts, spent, strict=True)]
