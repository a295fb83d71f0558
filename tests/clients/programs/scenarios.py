"""What programs do with RocketMQ's Python client: ``scenarios.py HOST:PORT [tls]``."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

ENDPOINT, TLS = sys.argv[1], "tls" in sys.argv[2:]
RUN = str(time.time_ns())
PATIENCE_S = 40.0
WAIT_S = 1
"""For messages, at one of two brokers by lot: long waits at the one that has none would use up the patience."""
CONFIGURATION = ClientConfiguration(ENDPOINT, Credentials(), request_timeout=10)


def message(kind: str, body: str, **fields: Any) -> Message:
    made = Message()
    made.topic, made.body, made.tag, made.keys = f"Clients{kind}", f"{RUN} {body}".encode(), "tag", body
    made.add_property("run", RUN)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def wait(condition: Callable[[], bool], what: str | set[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"python: no {what} within {PATIENCE_S:g} s")
        time.sleep(0.05)


def producer(*kinds: str, checker: TransactionChecker | None = None) -> Producer:
    made = Producer(CONFIGURATION, tuple(f"Clients{kind}" for kind in kinds), checker=checker, tls_enable=TLS)
    made.startup()
    return made


class Listener(MessageListener):
    """Fails the first attempt of one message."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.attempts: list[int] = []

    def consume(self, message: Message) -> ConsumeResult:
        run, _, body = message.body.decode().partition(" ")
        if run != RUN:
            return ConsumeResult.SUCCESS
        if body == "again":
            self.attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                return ConsumeResult.FAILURE
        self.bodies.append(body)
        return ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    """Commits what it is asked about."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def check(self, message: Message) -> TransactionResolution:
        self.asked.set()
        return TransactionResolution.COMMIT


def simple(kind: str, expected: set[str]) -> None:
    consumer = SimpleConsumer(
        CONFIGURATION, f"simple-{kind}-{RUN}", {f"Clients{kind}": FilterExpression("tag")}, WAIT_S, tls_enable=TLS
    )
    consumer.startup()
    missing = set(expected)

    def take() -> bool:
        for each in consumer.receive(32, 15):
            run, _, body = each.body.decode().partition(" ")
            if run == RUN:
                missing.discard(body)
            consumer.ack(each)
        return not missing

    wait(take, missing)
    consumer.shutdown()


def main() -> None:
    sender = producer("NORMAL", "FIFO", "DELAY")
    listener = Listener()
    subscribed = {f"Clients{kind}": FilterExpression() for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")}
    pushed = PushConsumer(CONFIGURATION, f"push-{RUN}", listener, subscribed, tls_enable=TLS)
    pushed.startup()
    for n in range(10):
        assert sender.send(message("NORMAL", f"normal {n}")).message_id
        assert sender.send(message("FIFO", f"fifo {n}", message_group="group")).message_id
    sender.send(message("NORMAL", "again"))
    sender.send_async(message("NORMAL", "async")).result(10)
    due = sender.send(message("DELAY", "recalled", delivery_timestamp=int(time.time()) + 8))
    sender.send(message("DELAY", "late", delivery_timestamp=int(time.time()) + 2))
    assert sender.recall_message("ClientsDELAY", due.recall_handle)
    checker = Checker()
    transactional = producer("TRANSACTION", checker=checker)
    for body, ends in (("committed", "commit"), ("rolled back", "rollback"), ("asked about", "")):
        transaction = transactional.begin_transaction()
        transactional.send(message("TRANSACTION", body), transaction)
        if ends:
            getattr(transaction, ends)()
    expected = {*(f"normal {n}" for n in range(10)), *(f"fifo {n}" for n in range(10))}
    expected |= {"again", "async", "late", "committed", "asked about"}
    wait(lambda: set(listener.bodies) >= expected, f"{expected - set(listener.bodies)}")
    assert checker.asked.is_set()
    assert listener.attempts == [1, 2], listener.attempts
    assert not {"recalled", "rolled back"} & set(listener.bodies)
    simple("NORMAL", {f"normal {n}" for n in range(10)})
    simple("FIFO", {f"fifo {n}" for n in range(10)})
    for each in (pushed, sender, transactional):
        each.shutdown()
    print(f"python: ok{' over TLS' if TLS else ''}")


if __name__ == "__main__":
    main()
