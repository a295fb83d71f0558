"""Numbered messages into one broker from a thread, with a record of what became of each, and reading them back."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.client import Admin, MessageView, Producer, PullConsumer
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import PenstockError, Retryable
from penstock.proto.wire import broker_pb2
from tests.support.client.calls import BrokerCalls, Position
from tests.support.waiting import wait_until

PAUSE_S = 0.002
"""Between two sends: a loop without pause takes the processor from the brokers that a test waits for."""


@dataclass
class History:
    """What became of the messages sent. Written by the sending thread, read after it."""

    acknowledged: dict[Position, bytes] = field(default_factory=dict)
    unknown: int = 0  # stored or not: time-outs and broken connections
    refused: collections.Counter[str] = field(default_factory=collections.Counter)  # by the error's name
    sent: int = 0


class Writer:
    """Sends batches of numbered bodies to one broker, one after the other, until stopped."""

    def __init__(self, address: str, *, topic: str = "orders", queues: int = 4, batch_count: int = 5) -> None:
        self.history = History()
        self._address = address
        self._topic = topic
        self._queues = queues
        self._batch_count = batch_count
        self._padding = b"." * 200
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> History:
        """End after the batch in flight."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the writer hangs"
        return self.history

    def wait_acknowledged(self, more: int, timeout_s: float = 20) -> None:
        """Wait until ``more`` messages than now are acknowledged."""
        target = len(self.history.acknowledged) + more
        wait_until(lambda: len(self.history.acknowledged) >= target, timeout_s, f"{target} acknowledged messages")

    def _run(self) -> None:
        with BrokerCalls(self._address) as broker:
            turn = 0
            while not self._stop.is_set():
                self._send(broker, turn % self._queues)
                turn += 1
                self._stop.wait(PAUSE_S)

    def _send(self, broker: BrokerCalls, queue_id: int) -> None:
        history = self.history
        bodies = [b"%d %s" % (history.sent + i, self._padding) for i in range(self._batch_count)]
        history.sent += len(bodies)
        try:
            receipt = broker.append(self._topic, bodies, queue_id, timeout_s=5, wait_for_ready=False)
        except PenstockError as error:
            by_broker = isinstance(error, Retryable) and "status" not in error.details
            if by_broker:
                history.refused[type(error).__name__] += len(bodies)
            else:
                history.unknown += len(bodies)
            self._stop.wait(0.02)
            return
        if receipt.status != broker_pb2.SEND_OK:
            history.unknown += len(bodies)
            return
        first = receipt.queue_offsets[0]
        for index, body in enumerate(bodies):
            history.acknowledged[queue_id, first + index] = body


@contextlib.contextmanager
def writing(address: str, **settings: int) -> Iterator[Writer]:
    """A writer at work for the length of the block."""
    writer = Writer(address, **settings)  # type: ignore[arg-type]
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def create_topic(address: str, topic: str = "orders", queues: int = 4) -> None:
    """Make the topic at one master."""
    with BrokerCalls(address) as broker:
        broker.create_topic(topic, queues)


def commit_offsets(address: str, group: str, offsets: dict[int, int], *, topic: str = "orders") -> None:
    """Commit as an administrator does: by queue id, without a session."""
    with BrokerCalls(address) as broker:
        broker.commit(group, topic, offsets)


def committed_offsets(address: str, group: str, *, topic: str = "orders") -> dict[int, int]:
    """What the group has committed, by queue id; nothing while the broker does not answer."""
    with BrokerCalls(address) as broker:
        try:
            return broker.committed(group, topic, wait_for_ready=False)
        except PenstockError:
            return {}


def read_all(address: str, *, topic: str = "orders") -> dict[Position, bytes]:
    """Every message that the broker at ``address`` serves, by position."""
    with BrokerCalls(address) as broker:
        return {position: decode_record(record).body for position, record in broker.records(topic).items()}


def missing(history: History, found: dict[Position, bytes]) -> list[Position]:
    """Acknowledged messages that are not there, or not with their bytes."""
    return [position for position, body in history.acknowledged.items() if found.get(position) != body]


def send_to_dead_letters(nameservers: str, group: str, origins: dict[str, int], *, tag: str = "") -> None:
    """Have a new member of ``group`` give up so many new messages of each topic; topics are made with one queue."""
    with Admin(nameservers) as admin, Producer(nameservers) as producer:
        for topic, count in origins.items():
            admin.create_topic(topic, queues=1)
            for number in range(count):
                producer.produce(topic, b"%d" % number, tag=tag or None)
        producer.flush(60)
    with PullConsumer(nameservers, group=group, consume_from="first") as consumer:
        for topic in origins:
            consumer.subscribe(topic)
        given_up: list[MessageView] = []
        wait_until(lambda: given_up.extend(consumer.poll(0.1)) or len(given_up) == sum(origins.values()), 60, "them")
        consumer.send_back(given_up, delay_level=-1)
