"""Listeners and quick push consumers for tests against a broker of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageView
from penstock.client.push_consumer import PushConsumer
from tests.support.client.running_cluster import RunningCluster

QUICK = ConsumerConfig(commit_interval_ms=30, settle_ms=100, retry_delays_ms=(20, 40), suspend_ms=20)


class Seen:
    """A listener that writes down what it got, and does what it is told."""

    def __init__(self, then: Callable[[MessageView], Any] | None = None) -> None:
        self.lock = threading.Lock()
        self.messages: list[MessageView] = []
        self.then = then

    def __call__(self, message: MessageView) -> Any:
        with self.lock:
            self.messages.append(message)
        return self.then(message) if self.then else None

    def bodies(self, queue_id: int | None = None) -> list[bytes]:
        with self.lock:
            return [each.body for each in self.messages if queue_id in (None, each.queue_id)]

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True


def consumer(cluster: RunningCluster, listener: Callable[[Any], Any], **options: Any) -> PushConsumer:
    defaults: dict[str, Any] = {"group": "g", "consume_from": "first", "config": QUICK}
    made = PushConsumer(cluster.namesrv, listener=listener, **(defaults | options))
    made.subscribe("orders")
    return made


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]
