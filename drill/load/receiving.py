"""The consumers of a drill, and the reader of its end: a row for each message that arrives."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.load.ledger import headers_of
from penstock.judge.history import EVENT, NO_KEY, Events, Op, Outcome, Recorder
from penstock.judge.pieces import NOBODY
from penstock.proto import names
from penstock.proto.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import MessageBatch, MessageQueue, MessageView, PullConsumer

GIVEN_BACK_EVERY = 64
"""A member gives every so manieth message of a stream back; of these, every other one comes again and is given up."""
GIVE_BACK_S = 10.0
POLL_TIMEOUT_S = 0.2
SOON_LEVEL, DEAD_LEVEL = 1, -1
"""Delay levels: 1 s, and none."""
POLL_MESSAGES_MAX = 200
"""What a consumer has at once, and so what may come again when it dies."""
READ_TIMEOUT_S = 60.0


def rows_of(batch: MessageBatch, op: Op, run: int, shards: Mapping[str, int], start_ns: int) -> Events:
    """One row per message; one that is not of this run has a stream that nobody sent."""
    bodies = batch.bodies()
    made = np.zeros(len(bodies), dtype=EVENT)
    headers, fits = headers_of(bodies)
    made["stream"] = np.uint32(NOBODY)
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
    made["position"] = batch.rows["store_timestamp" if op is Op.SHOWN else "physical_offset"]
    return made


def _key_of(message: MessageView) -> int:
    """The number in the message's ordering key, which is ``key-`` and a number."""
    return int(message.sharding_key.rpartition("-")[2]) if message.sharding_key is not None else NO_KEY


class GivingBack:
    """Gives some of a member's messages back, in a thread of its own: while a master is away, others go on."""

    def __init__(self, consumer: PullConsumer, recorder: Recorder, stop: threading.Event) -> None:
        self._consumer = consumer
        self._recorder = recorder
        self._stop = stop
        self._waiting: queue.SimpleQueue[tuple[list[MessageView], Events, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="give-back")
        self._thread.start()

    def take(self, batch: MessageBatch, rows: Events) -> None:
        """Give back what of ``batch`` is to fail; ``rows``: what was noted of it."""
        is_again = batch.topic.startswith(names.RETRY_PREFIX)
        every = 2 * GIVEN_BACK_EVERY if is_again else GIVEN_BACK_EVERY
        fails = (rows["stream"] != NOBODY) & (rows["sequence"] % every == 0)
        if is_again:  # once more and it is a dead letter; a dead letter that is tried anew is none of the drill's
            fails &= batch.rows["reconsume_times"] == 1
        if fails.any():
            messages = [message for message, is_failed in zip(batch, fails, strict=True) if is_failed]
            self._waiting.put((messages, rows[fails], DEAD_LEVEL if is_again else SOON_LEVEL))

    def close(self) -> None:
        """Return when everything is given back, or cannot be."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            messages, rows, level = item
            is_done = False
            while not is_done:
                self._note(rows, Outcome.UNKNOWN)
                try:
                    self._consumer.send_back(messages, level, timeout_s=GIVE_BACK_S)
                    is_done = True
                except PenstockError as error:
                    if self._stop.is_set() or not error.retryable:
                        break
            if is_done:
                self._note(rows, Outcome.OK)

    def _note(self, rows: Events, outcome: Outcome) -> None:
        made = rows.copy()
        made["op"], made["outcome"] = Op.GIVE_BACK, outcome
        made["end_ns"] = time.monotonic_ns()
        self._recorder.add_all(made)
        self._recorder.flush()


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
        giving = GivingBack(self._consumer, self._recorder, self._stop)
        with contextlib.closing(giving):
            while not self._stop.is_set():
                start_ns = time.monotonic_ns()
                batch = self._consumer.poll_batch(timeout_s=POLL_TIMEOUT_S, max_messages=POLL_MESSAGES_MAX)
                if len(batch):
                    op = Op.CAME_AGAIN if batch.topic.startswith(names.RETRY_PREFIX) else Op.RECEIVE
                    rows = rows_of(batch, op, self._run, self._shards, start_ns)
                    self._recorder.add_all(rows)
                    self._recorder.flush()
                    giving.take(batch, rows)
                    self.received += len(batch) * (op is Op.RECEIVE)


def read_all(
    consumer: PullConsumer,
    ends: Mapping[MessageQueue, int],
    run: int,
    shards: Sequence[str],
    recorder: Recorder,
    op: Op = Op.READ,
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
        recorder.add_all(rows_of(batch, op, run, numbers, start_ns))
        if int(batch.queue_offsets[-1]) + 1 >= left.get(batch.queue, 0):
            left.pop(batch.queue, None)
    recorder.flush()
    return [f"{queue.broker_name} queue {queue.queue_id}: not read up to {end}" for queue, end in left.items()]
