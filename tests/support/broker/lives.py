"""Stores in which topics were deleted and made anew, and records stand in light queues; by the broker's classes."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.broker.core.tables.topics import deleted_topic
from penstock.broker.store import Store as BrokerStore
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.model import Store
from penstock.proto.names import STATE_TOPIC
from tests.support.broker.stores import batch, dispatch_all, store_config

A, B = "%LMQ%a", "%LMQ%b"
PER_FILE = 20  # of the stores that are made here


def naming(*names: str) -> bytes:
    return b"INNER_MULTI_DISPATCH\x01" + ",".join(names).encode() + b"\x02"


class Made:
    """A store that the broker's classes write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = BrokerStore.open(store_config(root, lmq_enable=True, multi_dispatch=True), deletes=deleted_topic)

    def put(self, topic: str, count: int, properties: bytes = b"", queue_id: int = 0) -> None:
        records = batch(topic, [b"x" * 40] * count, queue_id, properties=[properties] * count)
        self._store.append(topic, records, queues=2)

    def note(self, count: int) -> None:
        """State records of another kind."""
        for _ in range(count):
            self._state(b"{}", b"OFFSETS")

    def delete(self, topic: str) -> int:
        return self._state(json.dumps({"topicName": topic}).encode(), b"TOPIC_DELETED")

    def _state(self, body: bytes, tag: bytes) -> int:
        start = self._store.end_offset
        self._store.append(STATE_TOPIC, batch(STATE_TOPIC, [body], properties=[b"TAGS\x01" + tag + b"\x02"]), queues=1)
        return start

    def dispatch(self) -> None:
        """Bring the queues up to the log's end, and into their files."""
        dispatch_all(self._store)
        self._store.checkpoint()

    def abandon(self) -> None:
        """As a killed broker does."""
        self._store.abandon()

    def close(self) -> Store:
        dispatch_all(self._store)
        self._store.close()
        return list_store(str(self.root))


def of_two_lives(root: Path) -> tuple[Store, int]:
    """A store whose topic ``t`` had 50 messages, and has 25 since it was made anew; and where it was deleted."""
    made = Made(root)
    made.note(3)
    made.put("other", 30)
    made.put("t", 50)
    made.put("t", 5, queue_id=1)
    made.note(30)
    deleted = made.delete("t")
    made.put("t", 25)
    made.put("other", 5)
    return made.close(), deleted


def lit(root: Path) -> tuple[Store, dict[str, int]]:
    """A store with two light queues, and where one of them, and a topic of its records, was deleted."""
    made = Made(root)
    made.put("p", 30, naming(A))
    made.put("q", 7, naming(B, A, B))
    made.put("%RETRY%g", 3)
    first = made.delete(B)
    made.put("q", 26, b"TAGS\x01x\x02" + naming(A, B))
    second = made.delete("q")
    made.put("q", 2, naming(B))
    return made.close(), {B: first, "q": second}
