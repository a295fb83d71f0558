"""One batch of records into the log, and its receipt when it is safe.

The cost per batch counts, not per message: the records are a view of the request's bytes from here into the
store's kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.formats.record.producer_mark import ProducerMark
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    ChangedBatch,
    CorruptBatch,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    NotEnoughReplicas,
    StaleProducer,
    TopicNotFound,
)
from penstock.proto.frames import unpack
from penstock.proto.wire import broker_pb2

from ..core.acknowledge import SEND_OK, Acknowledgements
from ..core.metrics import Counters
from ..core.producers import ProducerTable, Receipt, mark_of
from ..core.state import State, Topic
from .stalls import AppendStalls

if TYPE_CHECKING:
    from ..store.results import AppendResult

RECORD_OVERHEAD_MAX = 64 * 1024  # what a record may hold besides its body: header, topic, properties
COUNT_MAX = 1 << 17


class AppendStore(Protocol):
    """What of the store this module needs."""

    def append(self, topic: str, records: memoryview, *, queues: int, count: int) -> AppendResult: ...
    def changed_sizes(self, start: int, end: int, sent: memoryview) -> list[int]: ...
    def holds(self, start: int, end: int, sent: memoryview) -> bool: ...


class LaterMessages(Protocol):
    """What of the timers this module needs."""

    def check(self, records: memoryview, topic: Topic) -> None: ...


class WriterRole(Protocol):
    """What of the role this module needs."""

    @property
    def epoch(self) -> int: ...
    def check_master(self) -> None: ...
    def can_acknowledge(self) -> bool: ...


class Target(NamedTuple):
    """The topic whose records are stored, and how many queues it has: for later messages the timers' own."""

    stored: str
    queues: int

    @classmethod
    def of(cls, topic: Topic, *, later: bool) -> Target:
        """Where messages of ``topic`` are stored now."""
        return cls(names.TIMER_TOPIC, 1) if later else cls(topic.name, topic.write_queues)


@dataclass(slots=True)
class Placed:
    """A batch in the log that its sender has no receipt for yet."""

    receipt: Receipt
    is_duplicate: bool
    is_settled: bool  # its receipt waits for nothing
    no_wait: bool  # its receipt waits neither for the disk nor for replicas
    record_sizes: list[int]  # as stored, where they may be others than those sent
    started: float  # of time.perf_counter()
    deadline: float | None


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
        timers: LaterMessages,
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
        self._timers = timers
        self._stalls = stalls
        self.is_open = True

    def place(self, request: bytes) -> Placed:
        """Append one framed batch to the log; :meth:`acknowledge` makes its receipt.

        A batch is stored whole or not at all. An error means that nothing was stored, except a failing disk.
        """
        started = time.perf_counter()
        header, records = unpack(request, broker_pb2.AppendHeader)
        topic = self.writable_topic(header.topic)
        self._check_size(header, records)
        target = Target.of(topic, later=header.later)
        mark = mark_of(records)
        duplicate = self._check_producer(header, target, records, mark)
        if duplicate is not None:
            receipt = duplicate
        else:
            if not self._role.can_acknowledge():
                raise NotEnoughReplicas(
                    f"topic {topic.name}: fewer in-sync replicas than inSyncReplicas demands; nothing was stored"
                )
            if header.later:
                self._timers.check(records, topic)
            receipt = self._place(header, target, records, digest=0 if mark is None else mark.digest)
        return Placed(
            receipt,
            is_duplicate=duplicate is not None,
            is_settled=self._acknowledgements.is_immediate
            or (header.no_wait and not self._acknowledgements.waits_for_commit),
            no_wait=header.no_wait,
            record_sizes=self._store.changed_sizes(receipt.start, receipt.end, records) if header.count > 1 else [],
            started=started,
            deadline=started + header.timeout_ms / 1000 if header.timeout_ms > 0 else None,
        )

    async def acknowledge(self, placed: Placed) -> broker_pb2.AppendReceipt:
        """The receipt when the batch is as safe as the mode promises; its status tells a time-out.

        Raises:
            SyncFailed: the disk failed; whether the batch is safe is unknown.
        """
        status = SEND_OK
        if not placed.is_settled:
            left_s = None if placed.deadline is None else max(placed.deadline - time.perf_counter(), 0.0)
            wait = self._acknowledgements.wait_committed if placed.no_wait else self._acknowledgements.wait
            status = await wait(placed.receipt.end, left_s)
        self._counters.append_seconds.observe(time.perf_counter() - placed.started)
        receipt = placed.receipt
        return broker_pb2.AppendReceipt(
            physical_offset=receipt.start,
            store_timestamp_ms=receipt.store_timestamp_ms,
            queue_ids=receipt.queue_ids,
            queue_offsets=receipt.queue_offsets,
            status=status,
            duplicate=placed.is_duplicate,
            epoch=self._role.epoch,
            record_sizes=placed.record_sizes,
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

    def _check_run(self, header: broker_pb2.AppendHeader) -> None:
        writer = self._state.staging.writers.get(header.writer)
        if writer is not None and header.run in writer.fenced and header.run != writer.run:
            raise StaleProducer(
                f"writer {header.writer}: run {header.run} is fenced: run {writer.run} has taken over",
                epoch=writer.epoch,
            )

    def _check_producer(
        self, header: broker_pb2.AppendHeader, target: Target, records: memoryview, mark: ProducerMark | None
    ) -> Receipt | None:
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
        if header.writer:
            self._check_run(header)
        found = self._producers.find_duplicate(
            header.producer_id, header.producer_epoch, target.stored, header.lane, header.sequence
        )
        if found is None:
            return None
        if mark.digest and found.digest:
            is_same = mark.digest == found.digest
        else:
            is_same = self._store.holds(found.start, found.end, records)
        if not is_same:
            raise ChangedBatch(
                f"producer {header.producer_id:016x} lane {header.lane} topic {header.topic}: sequence "
                f"{header.sequence} stands for other messages, stored at {found.start}: nothing was stored"
            )
        return found

    def _place(self, header: broker_pb2.AppendHeader, target: Target, records: memoryview, *, digest: int) -> Receipt:
        if self._stalls is not None:
            self._stalls.check()
        started = time.perf_counter()
        result = self._store.append(target.stored, records, queues=target.queues, count=header.count)
        if self._stalls is not None:
            self._stalls.on_append(time.perf_counter() - started)
        receipt = Receipt(
            header.sequence,
            result.start,
            result.end,
            result.store_timestamp_ms,
            result.queue_ids,
            result.queue_offsets,
            digest,
        )
        if header.producer_id:
            self._producers.remember(header.producer_id, header.producer_epoch, target.stored, header.lane, receipt)
        self._counters.topic(target.stored).on_appended(result.count, len(records))
        self._on_appended(result.end)
        return receipt
