"""The consumers of a drill, and the reader of its end: a row for each message that arrives."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.load.ledger import headers_of
from penstock.judge.history import EVENT, NO_KEY, Events, Op, Outcome, Recorder

if TYPE_CHECKING:
    from penstock.client import MessageBatch, MessageQueue, MessageView, PullConsumer

POLL_TIMEOUT_S = 0.2
POLL_MESSAGES_MAX = 200
"""What a consumer has at once, and so what may come again when it dies."""
READ_TIMEOUT_S = 60.0


def rows_of(batch: MessageBatch, op: Op, run: int, shards: Mapping[str, int], start_ns: int) -> Events:
    """One row per message; one that is not of this run has a stream that nobody sent."""
    bodies = batch.bodies()
    made = np.zeros(len(bodies), dtype=EVENT)
    headers, fits = headers_of(bodies)
    made["stream"] = np.uint32(0xFFFF_FFFF)
    mine = np.zeros(len(bodies), dtype=np.bool_)
    mine[fits] = headers["run"] == run
    made["stream"][mine] = headers["stream"][mine[fits]]
    made["sequence"][mine] = headers["sequence"][mine[fits]].astype(np.int64)
    made["crc"] = np.fromiter(map(zlib.crc32, bodies), dtype=np.uint32, count=len(bodies))
    made["start_ns"], made["end_ns"] = start_ns, time.monotonic_ns()
    made["op"], made["outcome"], made["key"] = op, Outcome.OK, NO_KEY
    if op is Op.READ:
        made["key"] = [_key_of(message) if ours else NO_KEY for message, ours in zip(batch, mine, strict=True)]
    made["shard"], made["queue"] = shards.get(batch.broker_name, -1), batch.queue_id
    made["offset"] = batch.queue_offsets
    made["position"] = batch.rows["physical_offset"]
    return made


def _key_of(message: MessageView) -> int:
    """The number in the message's ordering key, which is ``key-`` and a number."""
    return int(message.sharding_key.rpartition("-")[2]) if message.sharding_key is not None else NO_KEY


class Member:
    """One consumer of the group. What a poll returned is in the file before the next poll commits it."""

    def __init__(
        self, consumer: PullConsumer, run: int, shards: Sequence[str], recorder: Recorder, stop: threading.Event
    ) -> None:
        self.received = 0
        self._consumer = consumer
        self._run = run
        self._shards = {name: index for index, name in enumerate(shards)}
        self._recorder = recorder
        self._stop = stop

    def run(self) -> None:
        """Poll until the stop."""
        while not self._stop.is_set():
            start_ns = time.monotonic_ns()
            batch = self._consumer.poll_batch(timeout_s=POLL_TIMEOUT_S, max_messages=POLL_MESSAGES_MAX)
            if len(batch):
                self._recorder.add_all(rows_of(batch, Op.RECEIVE, self._run, self._shards, start_ns))
                self._recorder.flush()
                self.received += len(batch)


def read_all(
    consumer: PullConsumer, ends: Mapping[MessageQueue, int], run: int, shards: Sequence[str], recorder: Recorder
) -> list[str]:
    """Read every queue from its first message to ``ends`` (offsets not included); what was not reached, by name."""
    numbers = {name: index for index, name in enumerate(shards)}
    left = {queue: end for queue, end in ends.items() if end > 0}
    if not left:
        return []
    consumer.assign(list(left))
    consumer.seek_to_begin(list(left))
    deadline = time.monotonic() + READ_TIMEOUT_S
    while left and time.monotonic() < deadline:
        start_ns = time.monotonic_ns()
        batch = consumer.poll_batch(timeout_s=POLL_TIMEOUT_S)
        if not len(batch):
            continue
        recorder.add_all(rows_of(batch, Op.READ, run, numbers, start_ns))
        if int(batch.queue_offsets[-1]) + 1 >= left.get(batch.queue, 0):
            left.pop(batch.queue, None)
    recorder.flush()
    return [f"{queue.broker_name} queue {queue.queue_id}: not read up to {end}" for queue, end in left.items()]
