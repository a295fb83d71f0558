"""Sends and receives with RocketMQ's Python client until its input ends: ``endless.py HOST:PORT``.

Then it only receives. It prints ``sent KIND NUMBER`` where a call has said so, ``failed KIND NUMBER: ERROR``
where it has not, ``got python KIND NUMBER`` for what is received, and ``idle`` when it sends no more.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable

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

CONFIGURATION = ClientConfiguration(sys.argv[1], Credentials(), request_timeout=5)
PAUSE_S = 0.05
is_over = threading.Event()


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def is_committed(message: Message) -> bool:
    return int(message.body.decode().split()[2]) % 2 == 0


class Listener(MessageListener):
    def consume(self, message: Message) -> ConsumeResult:
        tell(f"got {message.body.decode()}")
        return ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT if is_committed(message) else TransactionResolution.ROLLBACK


def send_all(kind: str, send: Callable[[Message], None]) -> None:
    for number in itertools.count():
        if is_over.is_set():
            return
        message = Message()
        message.topic, message.body = f"Clients{kind}", f"python {kind} {number}".encode()
        if kind == "FIFO":
            message.message_group = "python"
        try:
            send(message)
        except Exception as error:
            tell(f"failed {kind} {number}: {error!r}")
        else:
            tell(f"sent {kind} {number}")
        time.sleep(PAUSE_S)


def receive_all(consumer: SimpleConsumer) -> None:
    while True:
        try:
            for each in consumer.receive(16, 10):
                tell(f"got {each.body.decode()}")
                consumer.ack(each)
        except Exception as error:
            tell(f"failed simple: {error!r}")
            time.sleep(PAUSE_S)


def main() -> None:
    orderly = PushConsumer(CONFIGURATION, "python-orderly", Listener(), {"ClientsFIFO": FilterExpression()})
    orderly.startup()
    pushed = PushConsumer(CONFIGURATION, "python-push", Listener(), {"ClientsTRANSACTION": FilterExpression()})
    pushed.startup()
    simple = SimpleConsumer(CONFIGURATION, "python-simple", {"ClientsNORMAL": FilterExpression()}, 5)
    simple.startup()
    threading.Thread(target=receive_all, args=(simple,), daemon=True).start()
    producer = Producer(CONFIGURATION, ("ClientsNORMAL", "ClientsFIFO"))
    producer.startup()
    transactional = Producer(CONFIGURATION, ("ClientsTRANSACTION",), checker=Checker())
    transactional.startup()

    def execute(message: Message) -> None:
        transaction = transactional.begin_transaction()
        transactional.send(message, transaction)
        (transaction.commit if is_committed(message) else transaction.rollback)()

    sending = [
        threading.Thread(target=send_all, args=each)
        for each in (("NORMAL", producer.send), ("FIFO", producer.send), ("TRANSACTION", execute))
    ]
    for each in sending:
        each.start()
    sys.stdin.read()
    is_over.set()
    for each in sending:
        each.join()
    tell("idle")
    threading.Event().wait()


if __name__ == "__main__":
    main()
