"""The load of a drill: numbered messages at a steady pace, and a row for each outcome."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.load.ledger import HEADER, HEADER_BYTES
from penstock.client import SendStatus
from penstock.judge.history import NO_KEY, Op, Outcome, Recorder
from penstock.proto.errors import DeliveryFailed, OutcomeUnknown, PenstockError

if TYPE_CHECKING:
    from penstock.client import Producer, SendReceipt

RESERVED = 64
"""Sequences that one INVOKE row announces."""
BATCH = 10
KEYED_OF_TEN = 4
"""Four of ten single messages have an ordering key."""
TICK_S = 0.01
IN_FLIGHT_MAX = 4000
DRAIN_TIMEOUT_S = 20.0


def place_of(receipt: SendReceipt, shards: Mapping[str, int]) -> dict[str, int]:
    """The fields of a SEND row that say where an acknowledged message lies; ``shards``: names and their numbers."""
    return {
        "shard": shards.get(receipt.broker_name, -1),
        "queue": receipt.queue_id,
        "offset": receipt.queue_offset,
        "position": int(receipt.offset_message_id[-16:], 16),
        "epoch": receipt.epoch,
    }


@dataclass(slots=True)
class Counts:
    """Outcomes so far; written by the client's threads under a lock."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    held_back: int = 0  # not sent in time, because too many were under way


class Stream:
    """One numbered sender. Every message gets one SEND row; its sequence is in the file before it is sent."""

    def __init__(self, number: int, job: dict[str, Any], recorder: Recorder, counts: Counts) -> None:
        self._number = number
        self._run: int = job["run"]
        self._recorder = recorder
        self._shards = {name: index for index, name in enumerate(job["shards"])}
        self._counts = counts
        self._lock = threading.Lock()
        self._next = 0
        self._reserved = 0
        self.under_way = 0
        generator = np.random.default_rng([job["run"], number])
        self._padding = generator.integers(0, 256, 2 * job["size"], dtype=np.uint8).tobytes()
        self._size: int = job["size"]

    def body(self) -> tuple[int, bytes]:
        """The next message: its sequence, and a body that no other message has."""
        sequence = self._next
        if sequence >= self._reserved:
            now = time.monotonic_ns()
            reserve = {"stream": self._number, "sequence": sequence, "offset": RESERVED}
            self._recorder.add(Op.INVOKE, Outcome.OK, now, now, **reserve)
            self._recorder.flush()
            self._reserved += RESERVED
        self._next += 1
        head = HEADER.pack(self._run, self._number, sequence, time.time_ns())
        at = sequence % self._size
        return sequence, head + self._padding[at : at + self._size - HEADER_BYTES]

    def begin(self) -> int:
        """Count a message as under way; the time."""
        with self._lock:
            self.under_way += 1
        return time.monotonic_ns()

    def on_receipt(self, receipt: SendReceipt, sequence: int, start_ns: int, crc: int, key: int) -> None:
        """Note a message that is stored; its status says if it is as safe as the mode demands."""
        safe = receipt.status is SendStatus.SEND_OK
        self._recorder.add(
            Op.SEND,
            Outcome.OK if safe else Outcome.UNKNOWN,
            start_ns,
            time.monotonic_ns(),
            stream=self._number,
            sequence=sequence,
            crc=crc,
            key=key,
            **place_of(receipt, self._shards),
        )
        with self._lock:
            self.under_way -= 1
            self._counts.acknowledged += safe
            self._counts.unknown += not safe

    def on_error(self, error: BaseException | None, sequence: int, start_ns: int, crc: int, key: int) -> None:
        """The message was refused, or nobody knows (``error`` None, too)."""
        unknown = error is None or isinstance(error, OutcomeUnknown)
        outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED
        message = {"stream": self._number, "sequence": sequence, "crc": crc, "key": key}
        self._recorder.add(Op.SEND, outcome, start_ns, time.monotonic_ns(), **message)
        with self._lock:
            self.under_way -= 1
            self._counts.unknown += unknown
            self._counts.refused += not unknown

    def on_done(self, sequence: int, start_ns: int, crc: int, key: int, future: Future[SendReceipt]) -> None:
        """The end of an asynchronous send."""
        error = future.exception()
        if error is None:
            self.on_receipt(future.result(), sequence, start_ns, crc, key)
        else:
            self.on_error(error, sequence, start_ns, crc, key)


class Load:
    """Sends until it is stopped: single messages with and without ordering keys, and batches beside them.

    The pace does not wait for answers, as the world does not: what cannot be sent in time is counted.
    """

    def __init__(self, sender: Producer, job: dict[str, Any], recorder: Recorder, stop: threading.Event) -> None:
        self.counts = Counts()
        self._sender = sender
        self._topic: str = job["topic"]
        self._rate: float = job["rate"]
        self._keys: int = job["keys"]
        self._stop = stop
        number = job["number"] * 2
        self._single = Stream(number, job, recorder, self.counts)
        self._batched = Stream(number + 1, job, recorder, self.counts)
        self._recorder = recorder

    def run(self) -> None:
        """Send until the stop, then wait for the outcomes."""
        batches = threading.Thread(target=self._send_batches, name="batches", daemon=True)
        batches.start()
        self._send_singles()
        batches.join(DRAIN_TIMEOUT_S)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while self._single.under_way and time.monotonic() < deadline:
            time.sleep(TICK_S)
        self._recorder.flush()

    def _send_singles(self) -> None:
        rate = self._rate * 0.8
        began, sent = time.monotonic(), 0
        while not self._stop.wait(TICK_S):
            due = int((time.monotonic() - began) * rate)
            room = IN_FLIGHT_MAX - self._single.under_way
            if due - sent > room:
                self.counts.held_back += due - sent - room
                sent = due - room
            while sent < due:
                self._send_one()
                sent += 1
            self._recorder.flush()

    def _send_one(self) -> None:
        sequence, body = self._single.body()
        key = sequence // 10 % self._keys if sequence % 10 < KEYED_OF_TEN else NO_KEY
        options: dict[str, Any] = {}
        if key != NO_KEY:
            options = {"keys": [f"key-{key}"], "sharding_key": f"key-{key}"}
        crc = zlib.crc32(body)
        start_ns = self._single.begin()
        try:
            future = self._sender.send_async(self._topic, body, **options)
        except PenstockError as error:
            self._single.on_error(error, sequence, start_ns, crc, key)
        else:
            future.add_done_callback(partial(self._single.on_done, sequence, start_ns, crc, key))

    def _send_batches(self) -> None:
        pause_s = BATCH / (self._rate * 0.2)
        next_s = time.monotonic()
        while not self._stop.wait(max(next_s - time.monotonic(), 0.0)):
            next_s = max(next_s + pause_s, time.monotonic() - 1.0)
            self._send_batch()

    def _send_batch(self) -> None:
        from penstock.client import Message

        made = [self._batched.body() for _ in range(BATCH)]
        messages = [Message(topic=self._topic, body=body) for _, body in made]
        started = [self._batched.begin() for _ in made]
        errors: dict[bytes, BaseException] = {}
        receipts: Sequence[SendReceipt] = ()
        failed: BaseException | None = None
        try:
            receipts = self._sender.send_batch(messages)
        except DeliveryFailed as error:
            for failure in (*error.refused, *error.unknown):
                errors.update(dict.fromkeys(failure.bodies, failure.error))
        except PenstockError as error:
            failed = error
        for index, (sequence, body) in enumerate(made):
            crc, start_ns = zlib.crc32(body), started[index]
            if receipts:
                self._batched.on_receipt(receipts[index], sequence, start_ns, crc, NO_KEY)
            else:
                # Of a batch that failed in part, what succeeded has no receipt: it counts as unknown.
                self._batched.on_error(failed or errors.get(body), sequence, start_ns, crc, NO_KEY)
