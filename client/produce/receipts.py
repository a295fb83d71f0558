"""What senders learn: a receipt per message out of a broker's receipt for a batch, or the error instead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from penstock.formats.destination import Destination
from penstock.formats.recall_handle import RecallHandle
from penstock.formats.record.layout import Host, offset_message_id
from penstock.proto import errors
from penstock.proto.errors import PenstockError
from penstock.proto.wire.broker_pb2 import AppendReceipt
from penstock.proto.wire.broker_pb2 import SendStatus as WireStatus

from ..cluster.queues import WriteQueues
from ..cluster.retry import reworded
from ..message import FailedDelivery, Message, SendReceipt, SendStatus
from .parts import Batch, Part

GRACE_S = 0.25
"""The sender thread ends what is late; a waiting caller gives it this long to say how, then says unknown itself."""

FAILURES_MAX = 1000
FAILED_BODIES_BYTES_MAX = 16 * 1024 * 1024

_STATUS = {value: SendStatus(name) for name, value in WireStatus.items()}


class RunReceipt(NamedTuple):
    """Where messages lie that were sent as one: in one queue, each behind the other."""

    queue_id: int
    queue_offset: int
    """Of the first of them."""
    status: SendStatus


def receipts_of(
    destination: Destination, batch: Batch, receipt: AppendReceipt, store_host: Host
) -> list[SendReceipt | RunReceipt]:
    """Where each message, or each whole part, of ``batch`` lies for which somebody waits.

    Records follow each other, and each queue's offsets count up.
    """
    topic, gives_offsets = destination.topic, destination.gives_offsets
    if gives_offsets:
        next_offsets = dict(zip(receipt.queue_ids, receipt.queue_offsets, strict=True))
    else:
        next_offsets = dict.fromkeys(batch.queue_ids.tolist(), -1)
    positions = [receipt.physical_offset]
    if batch.record_sizes is not None:
        sizes = np.array(receipt.record_sizes, np.int64) if receipt.record_sizes else batch.record_sizes
        positions = (receipt.physical_offset + np.cumsum(sizes) - sizes).tolist()
    status = _STATUS[receipt.status]
    broker_name, stored_ms = batch.lane.broker_name, receipt.store_timestamp_ms
    duplicate, epoch = receipt.duplicate, receipt.epoch
    queue_ids = batch.queue_ids.tolist()
    receipts: list[SendReceipt | RunReceipt] = []
    end = 0
    for part in batch.parts:
        start, end = end, end + part.count
        if not part.futures:
            for queue_id in queue_ids[start:end]:
                next_offsets[queue_id] += gives_offsets
            continue
        if part.is_whole:
            queue_id = queue_ids[start]
            receipts.append(RunReceipt(queue_id, next_offsets[queue_id], status))
            next_offsets[queue_id] += part.count
            continue
        message_ids = part.message_ids
        handles: Iterable[str] = repeat("", len(message_ids))
        if part.dues_ms:
            dues = zip(part.dues_ms, message_ids, strict=True)
            now_ms = min(stored_ms, time.time_ns() // 1_000_000)  # what is due by both clocks is on its way
            handles = [
                RecallHandle(topic, broker_name, due_ms, message_id).encode() if due_ms > now_ms else ""
                for due_ms, message_id in dues
            ]
        for message_id, queue_id, position, handle in zip(
            message_ids, queue_ids[start:end], positions[start:end], handles, strict=True
        ):
            queue_offset = next_offsets[queue_id]
            next_offsets[queue_id] = queue_offset + gives_offsets
            receipts.append(
                SendReceipt(
                    message_id,
                    topic,
                    broker_name,
                    queue_id,
                    queue_offset,
                    offset_message_id(store_host, position),
                    status,
                    stored_ms,
                    duplicate,
                    epoch,
                    handle,
                )
            )
    return receipts


def unsent(
    part: Part, reason: PenstockError | None, topic: str, queues: WriteQueues, missing: Sequence[str]
) -> PenstockError:
    """Why a part was not sent: nobody takes it, the last error if there was one, else what the routes lack.

    ``missing``: the groups of keys that have no living master.
    """
    if queues.is_closed:
        return errors.Forbidden(f"topic {topic} may not be written: it is closed to writers at every broker group")
    if reason is not None:
        return reworded(reason, "not stored when the time was up")
    if not queues.exists:
        return errors.TopicNotFound(f"topic {topic} was deleted: not sent", topic=topic)
    if not queues.total:
        state = "no living master has a writable queue of it"
    elif part.place is not None and part.place[0] not in queues:
        state = f"broker group {part.place[0]}, whose queue {part.place[1]} was chosen, has no living master"
    elif missing:
        state = f"every lane is busy, or its key belongs to a group without a living master ({', '.join(missing)})"
        if queues.ordered:
            state += ", which keeps it: this is an order topic"
    else:
        state = "every lane is busy"
    return errors.BrokerUnavailable(f"topic {topic}: not sent before the time was up: {state}")


def result_of(future: Future[SendReceipt], topic: str, deadline: float) -> SendReceipt:
    """The receipt; the error that the send ended with; or unknown when the time is up."""
    try:
        return future.result(max(deadline - time.monotonic(), 0.0) + GRACE_S)
    except FutureTimeout:
        raise errors.OutcomeUnknown(
            f"topic {topic}: no answer within the time-out; the message may be stored"
        ) from None
    except CancelledError:
        raise errors.BrokerUnavailable(f"topic {topic}: the send was cancelled") from None


def results_of(sends: Sequence[tuple[Message, Future[SendReceipt]]], deadline: float) -> list[SendReceipt]:
    """All receipts.

    Raises:
        DeliveryFailed: some failed and some did not, or not all in the same way; else that one error.
    """
    receipts, failures = [], []
    for message, future in sends:
        try:
            receipts.append(result_of(future, message.topic, deadline))
        except Exception as error:  # noqa: BLE001  sorted and raised below
            failures.append(FailedDelivery(message.topic, 1, error, (message.body,)))
    if not failures:
        return receipts
    first = failures[0].error
    if not receipts and all(failure.error is first for failure in failures):
        raise first
    unknown = [failure for failure in failures if isinstance(failure.error, errors.OutcomeUnknown)]
    refused = [failure for failure in failures if not isinstance(failure.error, errors.OutcomeUnknown)]
    raise errors.DeliveryFailed(
        f"{len(failures)} of {len(sends)} messages of a batch failed, first: {first}", refused=refused, unknown=unknown
    )


class Failures:
    """What could not be delivered since somebody asked. Any thread adds to it; ``flush`` and ``close`` take it out.

    Whoever has ``on_delivery`` may never ask. So beyond :data:`FAILURES_MAX` those of one topic and one kind of error
    are counted as one, and bodies are kept up to :data:`FAILED_BODIES_BYTES_MAX`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By number, and by topic and kind of error behind those.
        self._refused: dict[object, FailedDelivery] = {}
        self._unknown: dict[object, FailedDelivery] = {}
        self._bodies_bytes = 0

    def add(self, failed: FailedDelivery) -> None:
        """Keep it until somebody asks."""
        size = sum(map(len, failed.bodies))
        with self._lock:
            kept = self._unknown if isinstance(failed.error, errors.OutcomeUnknown) else self._refused
            is_alone = len(kept) < FAILURES_MAX
            key: object = len(kept) if is_alone else (failed.topic, type(failed.error))
            if not is_alone or self._bodies_bytes + size > FAILED_BODIES_BYTES_MAX:
                failed, size = replace(failed, bodies=()), 0
            self._bodies_bytes += size
            former = kept.get(key)
            kept[key] = failed if former is None else replace(former, count=former.count + failed.count)

    def raise_all(self) -> None:
        """Raise DeliveryFailed with everything that failed, and forget it; return where nothing did."""
        with self._lock:
            refused, unknown = list(self._refused.values()), list(self._unknown.values())
            self._refused, self._unknown, self._bodies_bytes = {}, {}, 0
        if refused or unknown:
            raise errors.DeliveryFailed(_describe(refused, unknown), refused=refused, unknown=unknown)


def _describe(refused: list[FailedDelivery], unknown: list[FailedDelivery]) -> str:
    texts = []
    for what, failures in (("not stored", refused), ("unknown", unknown)):
        if failures:
            count = sum(failure.count for failure in failures)
            texts.append(f"{count} messages {what}, first: {failures[0].error}")
    return "; ".join(texts)
