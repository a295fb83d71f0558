"""What became of messages that somebody sends, as rows of a history."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.bench.load.ledger import HEADER
from penstock.client import SendStatus
from penstock.judge.history import NO_KEY, Op, Outcome, Recorder
from penstock.proto.errors import DeliveryFailed, OutcomeUnknown

if TYPE_CHECKING:
    from penstock.client import Delivery, SendReceipt

FLUSH_ROWS = 4096
"""So many rows are kept in memory at most, unless :meth:`Recorder.flush` is called between."""


@dataclass(slots=True)
class Counts:
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0


class Notes:
    """Called with what became of a message: adds its row. Threads may share it.

    ``keys``: message n of a stream has key n modulo ``keys``; 0: none has one.
    """

    def __init__(self, recorder: Recorder, shards: Sequence[str], keys: int) -> None:
        self.counts = Counts()  # written under the lock
        self._recorder = recorder
        self._shards = {name: index for index, name in enumerate(shards)}
        self._keys = keys
        self._rows = 0
        self._lock = threading.Lock()

    def __call__(
        self, ended: SendReceipt | BaseException, stream: int, number: int, start_ns: int, body: bytes
    ) -> None:
        if isinstance(ended, BaseException):
            # Of a batch that was delivered in part nobody says here which part.
            is_unknown = isinstance(ended, (OutcomeUnknown, DeliveryFailed))
            self._add(Outcome.UNKNOWN if is_unknown else Outcome.REFUSED, stream, number, start_ns, body)
            return
        self._add(
            Outcome.OK if ended.status is SendStatus.SEND_OK else Outcome.UNKNOWN,
            *(stream, number, start_ns, body),
            shard=self._shards.get(ended.broker_name, -1),
            queue=ended.queue_id,
            offset=ended.queue_offset,
            position=int(ended.offset_message_id[-16:], 16),
            epoch=ended.epoch,
        )

    def on_delivery(self, delivery: Delivery) -> None:
        """Add the rows of messages that ``produce`` had accepted: nobody says where those lie that are stored."""
        outcome = Outcome.OK
        if delivery.error is not None:
            outcome = Outcome.UNKNOWN if isinstance(delivery.error, OutcomeUnknown) else Outcome.REFUSED
        for body in delivery.bodies:
            _, stream, number, sent_ns = HEADER.unpack_from(body)
            start_ns = time.monotonic_ns() - (time.time_ns() - sent_ns)
            self._add(outcome, stream, number, start_ns, body, shard=self._shards.get(delivery.broker_name, -1))

    def _add(self, outcome: Outcome, stream: int, number: int, start_ns: int, body: bytes, **place: Any) -> None:
        key = number % self._keys if self._keys else NO_KEY
        message: dict[str, Any] = {"stream": stream, "sequence": number, "crc": zlib.crc32(body), "key": key}
        self._recorder.add(Op.SEND, outcome, start_ns, time.monotonic_ns(), **message, **place)
        with self._lock:
            self.counts.acknowledged += outcome is Outcome.OK
            self.counts.refused += outcome is Outcome.REFUSED
            self.counts.unknown += outcome is Outcome.UNKNOWN
            self._rows += 1
            is_due = self._rows % FLUSH_ROWS == 0
        if is_due:
            self._recorder.flush()
