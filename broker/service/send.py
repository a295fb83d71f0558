"""``BrokerData/Append``: one batch of records into the log.

The cost per call counts, not per message: the records are a view of the request's bytes from here into the
store's kernel, and no answer waits in a task of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import grpc.aio

from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    CorruptBatch,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    NotEnoughReplicas,
    TopicNotFound,
)
from penstock.proto.frames import pack, unpack
from penstock.proto.wire import broker_pb2

from .acknowledge import SEND_OK, Acknowledgements
from .metrics import Counters
from .producers import ProducerTable, Receipt, mark_of
from .stalls import AppendStalls
from .state import State, Topic

if TYPE_CHECKING:
    from ..store.results import AppendResult

RECORD_OVERHEAD_MAX = 64 * 1024  # what a record may hold besides its body: header, topic, properties
COUNT_MAX = 1 << 17


class AppendStore(Protocol):
    """What of the store this module needs."""

    def append(self, topic: str, records: memoryview, *, queues: int, count: int) -> AppendResult: ...


class WriterRole(Protocol):
    """What of the role this module needs."""

    @property
    def epoch(self) -> int: ...
    def check_master(self) -> None: ...
    def can_acknowledge(self) -> bool: ...


class Send:
    """Places batches in the log and answers when they are as safe as the mode promises."""

    def __init__(
        self,
        store: AppendStore,
        state: State,
        producers: ProducerTable,
        role: WriterRole,
        acknowledgements: Acknowledgements,
        counters: Counters,
        *,
        body_bytes_max: int,
        on_appended: Callable[[int], None],
        stalls: AppendStalls | None = None,
    ) -> None:
        self._store = store
        self._state = state
        self._producers = producers
        self._role = role
        self._acknowledgements = acknowledgements
        self._counters = counters
        self._batch_bytes_max = body_bytes_max + RECORD_OVERHEAD_MAX
        self._on_appended = on_appended
        self._stalls = stalls
        self.is_open = True

    async def append(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Append one framed batch; answers an ``AppendReceipt``.

        A batch is stored whole or not at all. An error means that nothing was stored, except an
        :class:`OutcomeUnknown` or a failing disk; the receipt's status tells a time-out after storing.
        """
        started = time.perf_counter()
        header, records = unpack(request, broker_pb2.AppendHeader)
        topic = self.writable_topic(header.topic)
        self._check_size(header, records)
        duplicate = self._check_producer(header, records)
        if duplicate is not None:
            receipt = duplicate
        else:
            if not self._role.can_acknowledge():
                raise NotEnoughReplicas(
                    f"topic {topic.name}: fewer in-sync replicas than inSyncReplicas demands; nothing was stored"
                )
            receipt = self._place(header, topic, records)
        status = SEND_OK
        if not (self._acknowledgements.is_immediate or header.no_wait):
            timeout_s = header.timeout_ms / 1000 if header.timeout_ms > 0 else None
            status = await self._acknowledgements.wait(receipt.end, timeout_s)
        self._counters.append_seconds.observe(time.perf_counter() - started)
        return pack(
            broker_pb2.AppendReceipt(
                physical_offset=receipt.start,
                store_timestamp_ms=receipt.store_timestamp_ms,
                queue_ids=receipt.queue_ids,
                queue_offsets=receipt.queue_offsets,
                status=status,
                duplicate=duplicate is not None,
                epoch=self._role.epoch,
                added_bytes=max(0, receipt.end - receipt.start - len(records)) // header.count,
            )
        )

    def writable_topic(self, name: str) -> Topic:
        """The topic, if clients may write it here and now; else the error that says why not."""
        if not self.is_open:
            raise BrokerUnavailable("the broker is shutting down")
        self._role.check_master()
        topic = self._state.topic(name)
        if topic is None:
            names.check_topic(name)
        if names.is_system_topic(name):
            raise Forbidden(f"topic {name} is internal: clients may not write to it")
        if topic is None:
            raise TopicNotFound(f"topic {name} does not exist at this broker: create it", topic=name)
        if not topic.is_writable:
            raise Forbidden(f"topic {name} may not be written: its perm is {topic.perm}")
        return topic

    def _check_size(self, header: broker_pb2.AppendHeader, records: memoryview) -> None:
        if len(records) > self._batch_bytes_max:
            raise MessageTooLarge(
                f"batch of {len(records)} bytes for topic {header.topic}: at most {self._batch_bytes_max} are allowed"
            )
        if not 1 <= header.count <= COUNT_MAX:
            raise InvalidArgument(f"count {header.count}: a batch has 1..{COUNT_MAX} records")

    def _check_producer(self, header: broker_pb2.AppendHeader, records: memoryview) -> Receipt | None:
        mark = mark_of(records)
        if mark is None:
            if header.producer_id:
                raise CorruptBatch(
                    f"record 0: an idempotent batch carries its mark as first property, {names.PRODUCER_PROPERTY}",
                    index=0,
                )
            return None
        expected = (header.producer_id, header.producer_epoch, header.lane, header.sequence, header.count)
        if (mark.producer_id, mark.epoch, mark.lane, mark.sequence, mark.count) != expected:
            raise CorruptBatch(f"record 0: its mark {mark} is not the header's {expected}", index=0)
        return self._producers.find_duplicate(
            header.producer_id, header.producer_epoch, header.topic, header.lane, header.sequence
        )

    def _place(self, header: broker_pb2.AppendHeader, topic: Topic, records: memoryview) -> Receipt:
        if self._stalls is not None:
            self._stalls.check()
        started = time.perf_counter()
        result = self._store.append(topic.name, records, queues=topic.write_queues, count=header.count)
        if self._stalls is not None:
            self._stalls.on_append(time.perf_counter() - started)
        receipt = Receipt(
            header.sequence,
            result.start,
            result.end,
            result.store_timestamp_ms,
            result.queue_ids,
            result.queue_offsets,
        )
        if header.producer_id:
            self._producers.remember(header.producer_id, header.producer_epoch, topic.name, header.lane, receipt)
        self._counters.topic(topic.name).on_appended(result.count, len(records))
        self._on_appended(result.end)
        return receipt
