"""Fetching the slices of one partition, in a Spark worker: exactly these messages, or an error.

Several queues of a broker share a request; while one answer is turned into columns the next one is on its way. The
messages come slice after slice in the planned order, however answers are cut: an idempotent writer knows its rows by
their order, so a task that is repeated must read the same.

Every checksum is proved. Records that fail are asked for again, to be proved by their broker, which says what is wrong
with its file. What is lost is lost when the master says so: a slave may be behind, and has a retention of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.cluster import Sql, Subscription, fetched, parse_subscription, pause_before_retry_s, reworded
from penstock.formats.record.kernels import ROW, ScanStatus, scan
from penstock.proto.errors import BrokerUnavailable, DamagedRecord, DataLoss, PenstockError, TopicNotFound
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter

from ...columns.columns import Bytes, ColumnWriter, Rows
from ..cluster import CLIENT_ID, Cluster
from ..offsets import Queue, Slice
from ..options import SourceOptions
from ..waiting import Reminder

log = logging.getLogger(__name__)

QUEUES_AT_ONCE = 64
WAIT_MS = 500


@dataclass(slots=True)
class _Reading:
    """A slice while it is read: the next offset that is wanted."""

    queue: Queue
    next: int
    end: int
    is_doubted: bool = False  # its last answer held bad records: the broker is to prove them


@dataclass(slots=True)
class _Shard:
    """What is still to be read from one broker group, in order."""

    name: str
    left: list[_Reading]
    at_once: int = QUEUES_AT_ONCE
    asks_master: str = ""  # what a slave said, and only the master can say
    records: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))  # the last answer's


class _Flight(NamedTuple):
    """A request under way."""

    address: str
    asked: list[_Reading]
    call: Any


class SliceReader:
    """Reads slices as record batches; made in the worker that uses it."""

    def __init__(
        self, cluster: Cluster, options: SourceOptions, schema: pa.Schema, *, keeps_bad_bodies: bool = False
    ) -> None:
        """``keeps_bad_bodies``: one that cannot be decompressed is what is stored, and no damage."""
        self._cluster = cluster
        self._options = options
        self._schema = schema
        self._keeps_bad_bodies = keeps_bad_bodies
        self.lost = 0  # messages that were gone or damaged, and left out, so far
        expression = Sql(options.filter_sql) if options.filter_sql else options.sub_expression
        self._subscription: Subscription = parse_subscription("any", expression)
        self._is_filtered = self._subscription.filter.kind != Filter.ALL
        self._tags = ColumnWriter(pa.schema([pa.field("tags", pa.string())]), broker_name="")

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """Every message of the slices: broker after broker as they are first named, and each one's slices in order.

        Two readers of the same slices give the same rows in the same order, in batches that may be cut elsewhere.
        Raises DataLoss, TopicNotFound, DamagedRecord: messages are gone or damaged, and ``failOnDataLoss`` is on.
        Raises PenstockError: the broker does not answer, or answers something else.
        """
        by_broker: dict[str, list[_Reading]] = {}
        for each in slices:
            by_broker.setdefault(each.queue.broker, []).append(_Reading(each.queue, each.start, each.end))
        for broker, readings in by_broker.items():
            shard = _Shard(broker, readings)
            writer = ColumnWriter(
                self._schema,
                broker_name=broker,
                decompress=self._options.decompress,
                batch_rows=self._options.batch_rows,
                on_bad_body=partial(self._bad_body, shard),
                keeps_bad_bodies=self._keeps_bad_bodies,
            )
            yield from self._read_shard(shard, writer)
        if self.lost:
            log.warning("messages were lost or damaged and left out count=%d", self.lost)

    def _read_shard(self, shard: _Shard, writer: ColumnWriter) -> Iterator[pa.RecordBatch]:
        flight: _Flight | None = None
        deadline = self._deadline()
        reminder = Reminder(f"a task that reads at broker group {shard.name}")
        attempt = 0
        try:
            while shard.left:
                try:
                    landed, flight = flight or self._start(shard, fresh=attempt > 0), None
                    reply, body = fetched(landed.call)
                except PenstockError as error:
                    attempt += 1
                    pause_s = pause_before_retry_s(error, attempt, deadline)
                    if pause_s is None:
                        if shard.asks_master:
                            raise reworded(error, shard.asks_master) from error
                        raise
                    reminder.tell(error)
                    time.sleep(pause_s)
                    continue
                attempt = 0
                before = [each.next for each in landed.asked]
                data, rows = self._take(shard, landed, reply, body)
                if before != [each.next for each in landed.asked]:
                    deadline = self._deadline()
                    reminder.restart()
                else:
                    first = landed.asked[0]
                    planned = f"queue {first.queue}: messages {first.next}..{first.end} were planned, broker"
                    if time.monotonic() >= deadline:
                        raise BrokerUnavailable(
                            f"{planned} {landed.address} does not have them (yet) after {self._timeout_s():g} s"
                        )
                    reminder.tell(f"{planned} {landed.address} does not have them (yet)")
                shard.left = [each for each in shard.left if each.next < each.end]
                if shard.left:
                    try:
                        flight = self._start(shard)
                    except PenstockError:
                        flight = None  # the loop's next turn tries again
                began = time.monotonic()
                shard.records = data
                for batch in writer.batches(data, rows):
                    yield from self._sound(batch)
                deadline += time.monotonic() - began  # whoever takes them may take long
        finally:
            if flight is not None:
                flight.call.cancel()

    def _start(self, shard: _Shard, *, fresh: bool = False) -> _Flight:
        asked = shard.left[: shard.at_once]
        address = self._cluster.calls.directory.address(shard.name, reading=not shard.asks_master, fresh=fresh)
        header = FetchHeader(
            client_id=CLIENT_ID, max_bytes=self._options.fetch_max_bytes, max_wait_ms=WAIT_MS, in_order=True
        )
        for each in asked:
            header.topics.add(
                topic=each.queue.topic,
                queue_ids=[each.queue.queue_id],
                offsets=[each.next],
                ends=[each.end],
                filter=self._subscription.filter,
            )
            header.verify = header.verify or each.is_doubted
        timeout_s = self._options.fetch_timeout_ms / 1000
        return _Flight(address, asked, self._cluster.calls.connections.fetch(address, header, timeout_s))

    def _take(self, shard: _Shard, flight: _Flight, reply: FetchReply, body: memoryview) -> tuple[Bytes, Rows]:
        """Move the slices on, the first ones, up to one that is not complete, and find the rows that are wanted."""
        data = np.frombuffer(body, np.uint8)
        found: dict[int, tuple[int, FetchReply.Result]] = {}
        position = 0
        for result in reply.results:
            found[result.topic_index] = position, result
            position += result.bytes
        parts: list[Rows] = []
        for index, each in enumerate(flight.asked):
            if index in found:
                begin, result = found.pop(index)
                if result.status == FetchReply.FOUND:
                    parts.append(self._rows(shard, flight.address, each, data, begin, result))
                elif result.status == FetchReply.NO_MATCHED_MESSAGE:
                    each.next = min(result.next_offset, each.end)
                else:
                    self._take_trouble(shard, flight.address, each, result)
            if each.next < each.end:
                break
        if found:
            shard.at_once = 1  # a broker that does not know of order, so what it sent out of turn is asked for again
        return data, parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, ROW), *parts])

    def _rows(
        self, shard: _Shard, address: str, each: _Reading, data: Bytes, begin: int, result: FetchReply.Result
    ) -> Rows:
        rows: Rows = np.empty(result.count, ROW)
        count, _, status = scan(data, begin, begin + result.bytes, -1, True, rows)
        rows, are_good = rows[:count], count == result.count and status == ScanStatus.END
        offsets, start = rows["queue_offset"], each.next
        if count and not self._is_filtered:
            self._check_whole(each, offsets)
        if are_good:
            each.next = min(result.next_offset, each.end)
        elif count:
            each.next = min(int(offsets[-1]) + 1, each.end)
        elif each.is_doubted:
            self._leave_out(shard, address, each, each.next + 1, f"broker {address} proved it, and it came damaged")
            return rows
        each.is_doubted = not are_good
        wanted = (offsets >= start) & (offsets < each.end)
        if not wanted.all():
            rows = rows[wanted]
        return self._with_tag(data, rows) if self._subscription.tags and len(rows) else rows

    def _take_trouble(self, shard: _Shard, address: str, each: _Reading, result: FetchReply.Result) -> None:
        if result.status == FetchReply.DAMAGED:
            self._leave_out(shard, address, each, result.next_offset, result.problem)
        elif result.status == FetchReply.OFFSET_TOO_SMALL:
            if self._is_told_by_master(shard, address, f"queue {each.queue} begins at {result.min_offset}"):
                self._lose(each, result.min_offset, f"the queue begins at {result.min_offset} now")
        elif result.status == FetchReply.OFFSET_OVERFLOW:
            if self._is_told_by_master(shard, address, f"queue {each.queue} ends at {result.max_offset}"):
                self._lose(each, each.end, f"the queue ends at {result.max_offset}: its log lost its end")
        elif result.status == FetchReply.QUEUE_NOT_FOUND and self._is_told_by_master(
            shard, address, f"queue {each.queue} does not exist"
        ):
            self._gone(each)

    def _is_told_by_master(self, shard: _Shard, address: str, what: str) -> bool:
        """True if the answer counts, being the master's; else the master is asked from now on."""
        try:
            is_master = self._cluster.calls.directory.address(shard.name, fresh=True) == address
        except PenstockError:  # nobody knows of one just now
            is_master = False
        if not is_master:
            shard.asks_master = f"the master is waited for, since broker {address}, which is not, says that {what}"
            log.warning("%s", shard.asks_master)
        return is_master

    def _with_tag(self, data: Bytes, rows: Rows) -> Rows:
        """Brokers compare hashes of tags, which several tags may share."""
        wanted = pa.array(sorted(self._subscription.tags))
        masks = [pc.is_in(batch.column(0), wanted) for batch in self._tags.batches(data, rows)]
        mask = np.concatenate([np.asarray(part.to_numpy(zero_copy_only=False), np.bool_) for part in masks])
        return rows if mask.all() else rows[mask]

    def _pass_over(self, kind: type[PenstockError], text: str, instead: str, count: int) -> None:
        """Count what is left out, if that is allowed; else raise an error of this kind."""
        if self._options.fail_on_data_loss:
            raise kind(f"{text}; failOnDataLoss=false {instead}")
        log.warning("%s", text)
        self.lost += count

    def _lose(self, each: _Reading, following: int, why: str) -> None:
        following = min(following, each.end)
        text = f"queue {each.queue}: messages {each.next}..{following} are gone: {why}"
        self._pass_over(DataLoss, text, "reads what is left", following - each.next)
        each.next = following

    def _check_whole(self, each: _Reading, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """That these are the next messages of the slice, without a hole."""
        expected = np.minimum(np.concatenate(([each.next], offsets[:-1] + 1)), each.end)
        missing = np.minimum(offsets, each.end) - expected
        if not missing.any():
            return
        wrong = int(np.flatnonzero(missing)[0])
        text = f"queue {each.queue}: message {expected[wrong]} is missing, {offsets[wrong]} follows"
        self._pass_over(DataLoss, text, "reads what is left", int(np.maximum(missing, 0).sum()))

    def _leave_out(self, shard: _Shard, address: str, each: _Reading, following: int, problem: str) -> None:
        text = self._damaged(each.queue, each.next, following, problem)
        if not self._is_told_by_master(shard, address, f"message {each.next} of queue {each.queue} is damaged"):
            return
        log.warning("%s", text)
        following = max(each.next + 1, min(following, each.end))
        self.lost += following - each.next
        each.next, each.is_doubted = following, False

    def _bad_body(self, shard: _Shard, rows: Rows, index: int, error: Exception) -> str:
        """A body that is as it was sent, by its checksum, and that cannot be decompressed."""
        if self._keeps_bad_bodies:
            return str(error)
        row = rows[index]
        start, offset = int(row["topic_position"]), int(row["queue_offset"])
        topic = shard.records[start : start + int(row["topic_size"])].tobytes().decode()
        queue = Queue(topic, shard.name, int(row["queue_id"]))
        log.warning("%s", self._damaged(queue, offset, offset + 1, f"{error}: decompress=false reads what is stored"))
        self.lost += 1
        return str(error)

    def _sound(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with a body, where bodies are read: the others are left out. No batch without rows."""
        if "body" in batch.schema.names and batch.column("body").null_count:
            batch = batch.filter(batch.column("body").is_valid())
        if len(batch):
            yield batch

    def _damaged(self, queue: Queue, offset: int, following: int, problem: str) -> str:
        """What is damaged. Raises DamagedRecord: it may not be left out."""
        text = f"queue {queue}: message {offset} is damaged: {problem}"
        if self._options.fail_on_data_loss:
            raise DamagedRecord(
                f"{text}; failOnDataLoss=false leaves it out",
                topic=queue.topic,
                broker_name=queue.broker,
                queue_id=queue.queue_id,
                offset=offset,
                next_offset=following,
            )
        return text

    def _gone(self, each: _Reading) -> None:
        text = f"queue {each.queue} does not exist any more: messages {each.next}..{each.end} are gone"
        self._pass_over(TopicNotFound, text, "goes on without them", each.end - each.next)
        each.next = each.end

    def _timeout_s(self) -> float:
        return max(self._options.fetch_timeout_ms / 1000, self._options.timeout_s)

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s()
