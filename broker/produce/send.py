"""One batch of records into the log, and its receipt when it is safe.

The cost per batch counts, not per message: the records are a view of the request's bytes from here into the
store's kernel.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.formats.record.producer_mark import ProducerMark
from penstock.proto import names
from penstock.proto.errors import ChangedBatch, CorruptBatch, InvalidArgument, MessageTooLarge
from penstock.proto.frames import unpack
from penstock.proto.wire import broker_pb2

from ..config import RECORD_OVERHEAD_BYTES
from ..core.acknowledge import SEND_OK
from ..core.core import Core
from ..core.intake import check_types, client_mark, writable_topic
from ..core.journal import Target
from ..core.tables.producers import Receipt
from .stalls import AppendStalls

COUNT_MAX = 1 << 17


@dataclass(slots=True)
class Placed:
    """A batch in the log that its sender has no receipt for yet."""

    receipt: Receipt
    epoch: int  # of the role then
    is_duplicate: bool
    is_settled: bool  # its receipt waits for nothing
    no_wait: bool  # its receipt waits neither for the disk nor for replicas
    record_sizes: list[int]  # as stored, where they may be others than those sent
    started: float  # of time.perf_counter()
    deadline: float | None


class Send:
    """Places batches in the log and answers when they are as safe as the mode promises."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._producers = core.tables.producers
        self._acknowledgements = core.acknowledgements
        self._intakes = core.features.intakes
        self._batch_bytes_max = core.config.store.body_bytes_max + RECORD_OVERHEAD_BYTES
        self._stalls = AppendStalls(core.config.appends.stall_limit_ms / 1000, core.clock)

    def place(self, request: bytes | memoryview) -> Placed:
        """Append one framed batch to the log; :meth:`acknowledge` makes its receipt. Nothing keeps the request.

        A batch is stored whole or not at all. An error means that nothing was stored, except a failing disk.
        """
        started = time.perf_counter()
        header, records = unpack(request, broker_pb2.AppendHeader)
        topic = writable_topic(self._core, header.topic)
        self._check_size(header, records)
        intake = self._intakes[header.later]
        target = intake.target(topic)
        mark = client_mark(records)
        duplicate = self._check_producer(header, target, records, mark)
        if duplicate is not None:
            receipt = duplicate
        else:
            journal = self._core.acknowledging()
            intake.check(records, topic)
            check_types(records, header.count, topic, intake)
            self._stalls.check()
            appending = time.perf_counter()
            receipt = journal.append(target, records, mark, count=header.count)
            self._stalls.on_append(time.perf_counter() - appending)
            intake.on_stored(receipt, header.count)
        return Placed(
            receipt,
            self._core.role.epoch,
            is_duplicate=duplicate is not None,
            is_settled=self._acknowledgements.is_immediate
            or (header.no_wait and not self._acknowledgements.waits_for_commit),
            no_wait=header.no_wait,
            record_sizes=self._store.changed_sizes(receipt.start, receipt.end, records) if header.count > 1 else [],
            started=started,
            deadline=started + header.timeout_ms / 1000 if header.timeout_ms > 0 else None,
        )

    async def acknowledge(self, placed: Placed) -> broker_pb2.AppendReceipt:
        """The receipt when the batch is safe; its status tells a time-out. Raises SyncFailed: it may be safe or not."""
        status = SEND_OK
        if not placed.is_settled:
            left_s = None if placed.deadline is None else max(placed.deadline - time.perf_counter(), 0.0)
            if placed.no_wait:
                status = await self._acknowledgements.wait_committed(placed.receipt.end, left_s)
            else:
                status = await self._acknowledgements.wait(placed.receipt.end, left_s, epoch=placed.epoch)
        return self.receipt(placed, status)

    def receipt(self, placed: Placed, status: broker_pb2.SendStatus = SEND_OK) -> broker_pb2.AppendReceipt:
        """The receipt of one that waits for nothing, or has waited."""
        self._core.counters.append_seconds.observe(time.perf_counter() - placed.started)
        receipt = placed.receipt
        return broker_pb2.AppendReceipt(
            physical_offset=receipt.start,
            store_timestamp_ms=receipt.store_timestamp_ms,
            queue_ids=receipt.queue_ids,
            queue_offsets=receipt.queue_offsets,
            status=status,
            duplicate=placed.is_duplicate,
            epoch=placed.epoch,
            record_sizes=placed.record_sizes,
        )

    def _check_size(self, header: broker_pb2.AppendHeader, records: memoryview) -> None:
        if len(records) > self._batch_bytes_max:
            raise MessageTooLarge(
                f"batch of {len(records)} bytes for topic {header.topic}: at most {self._batch_bytes_max} are allowed"
            )
        if not 1 <= header.count <= COUNT_MAX:
            raise InvalidArgument(f"count {header.count}: a batch has 1..{COUNT_MAX} records")

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
            self._core.features.admit(header.writer, header.run)
        found = self._producers.find_duplicate(
            *(header.producer_id, header.producer_epoch, target.topic, header.lane, header.sequence), again=header.again
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
