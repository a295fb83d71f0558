"""Fetching the slices of one partition, in a Spark worker: exactly these messages, or an error.

Several queues of a broker share a request; while one answer is turned into columns the next one is on its way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.connections import decode_fetch
from penstock.client.retry import back_off_s
from penstock.client.subscription import Sql, Subscription, parse_subscription
from penstock.proto.errors import BrokerUnavailable, Corrupt, DataLoss, PenstockError, TopicNotFound, from_rpc_error
from penstock.proto.record.kernels import ROW, ScanStatus, scan
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter

from ..columns import ColumnWriter, Rows
from .cluster import Cluster
from .offsets import Queue, Slice
from .options import SourceOptions

log = logging.getLogger(__name__)

QUEUES_AT_ONCE = 64
WAIT_MS = 500
CLIENT_ID = "spark"


@dataclass(slots=True)
class _Reading:
    """A slice while it is read: the next offset that is wanted."""

    queue: Queue
    next: int
    end: int


class SliceReader:
    """Reads slices as record batches; made in the worker that uses it."""

    def __init__(self, cluster: Cluster, options: SourceOptions, schema: pa.Schema) -> None:
        self._cluster = cluster
        self._options = options
        self._schema = schema
        self._lost = 0
        expression = Sql(options.filter_sql) if options.filter_sql else options.sub_expression
        self._subscription: Subscription = parse_subscription("any", expression)
        self._is_filtered = self._subscription.filter.kind != Filter.ALL
        self._tags = ColumnWriter(pa.schema([pa.field("tags", pa.string())]), broker_name="")

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """Every message of the slices, per queue in order.

        Raises:
            DataLoss: messages are gone, and ``failOnDataLoss`` is on.
            PenstockError: the broker does not answer, or answers something else.
        """
        by_broker: dict[str, list[_Reading]] = {}
        for each in slices:
            by_broker.setdefault(each.queue.broker, []).append(_Reading(each.queue, each.start, each.end))
        for broker, readings in by_broker.items():
            writer = ColumnWriter(
                self._schema,
                broker_name=broker,
                decompress=self._options.decompress,
                batch_rows=self._options.batch_rows,
            )
            yield from self._read_broker(broker, readings, writer)
        if self._lost:
            log.warning("messages were lost and left out count=%d", self._lost)

    def _read_broker(self, broker: str, readings: list[_Reading], writer: ColumnWriter) -> Iterator[pa.RecordBatch]:
        left = list(readings)
        flight: tuple[str, list[_Reading], Any] | None = None
        deadline = self._deadline()
        attempt = 0
        while left or flight:
            try:
                if flight is None:
                    flight = self._start(broker, left, fresh=attempt > 0)
                address, asked, call = flight
                flight = None
                reply, body = _answer(address, call)
            except PenstockError as error:
                attempt += 1
                wait_s = back_off_s(attempt)
                if not error.retryable or time.monotonic() + wait_s >= deadline:
                    raise
                flight = None
                time.sleep(wait_s)
                continue
            attempt = 0
            data, rows = self._take(asked, reply, body)
            if len(rows) or any(each.next >= each.end for each in asked):
                deadline = self._deadline()
            elif time.monotonic() >= deadline:
                first = next(each for each in asked if each.next < each.end)
                raise BrokerUnavailable(
                    f"queue {first.queue}: messages {first.next}..{first.end} were planned, broker {address} does not "
                    f"have them (yet) after {self._timeout_s():g} s"
                )
            left = [each for each in left if each.next < each.end]
            if left:
                try:
                    flight = self._start(broker, left)
                except PenstockError:
                    flight = None  # the loop's next turn tries again
            yield from writer.batches(data, rows)

    def _start(self, broker: str, left: list[_Reading], *, fresh: bool = False) -> tuple[str, list[_Reading], Any]:
        asked = left[:QUEUES_AT_ONCE]
        address = self._cluster.calls.address(broker, reading=True, fresh=fresh)
        header = FetchHeader(client_id=CLIENT_ID, max_bytes=self._options.fetch_bytes, max_wait_ms=WAIT_MS)
        for each in asked:
            header.topics.add(
                topic=each.queue.topic,
                queue_ids=[each.queue.queue_id],
                offsets=[each.next],
                filter=self._subscription.filter,
            )
        timeout_s = self._options.fetch_timeout_ms / 1000
        return address, asked, self._cluster.connections.fetch(address, header, timeout_s)

    def _take(
        self, asked: list[_Reading], reply: FetchReply, body: memoryview
    ) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Rows]:
        """Move the slices on and find the rows that are wanted; results come in the order of their bytes."""
        data = np.frombuffer(body, np.uint8)
        position = 0
        parts = [np.empty(0, ROW)]
        for result in reply.results:
            each = asked[result.topic_index]
            begin, position = position, position + result.bytes
            if result.status == FetchReply.FOUND:
                parts.append(self._rows(each, data, begin, position, result))
                each.next = min(result.next_offset, each.end)
            elif result.status == FetchReply.NO_MATCHED_MESSAGE:
                each.next = min(result.next_offset, each.end)
            elif result.status == FetchReply.OFFSET_TOO_SMALL:
                self._lose(each, result.min_offset, f"the queue begins at {result.min_offset} now")
            elif result.status == FetchReply.OFFSET_OVERFLOW:
                self._lose(each, each.end, f"the queue ends at {result.max_offset}: its log lost its end")
            elif result.status == FetchReply.QUEUE_NOT_FOUND:
                self._gone(each)
        return data, np.concatenate(parts)

    def _rows(
        self,
        each: _Reading,
        data: np.ndarray[Any, np.dtype[np.uint8]],
        begin: int,
        end: int,
        result: FetchReply.Result,
    ) -> Rows:
        rows: Rows = np.empty(result.count, ROW)
        count, _, status = scan(data, begin, end, -1, False, rows)
        if count != result.count or status != ScanStatus.END:
            raise Corrupt(f"queue {each.queue}: the answer from {each.next} on is not {result.count} whole records")
        offsets = rows["queue_offset"]
        if not self._is_filtered and (offsets[0] != each.next or (count > 1 and bool((np.diff(offsets) != 1).any()))):
            wrong = int(offsets[0]) if offsets[0] != each.next else int(offsets[1:][np.diff(offsets) != 1][0])
            self._lose_hole(each, wrong)
        rows = rows[(offsets >= each.next) & (offsets < each.end)]
        return self._with_tag(data, rows) if self._subscription.tags and len(rows) else rows

    def _with_tag(self, data: np.ndarray[Any, np.dtype[np.uint8]], rows: Rows) -> Rows:
        """Brokers compare hashes of tags, which several tags may share."""
        wanted = pa.array(sorted(self._subscription.tags))
        masks = [pc.is_in(batch.column(0), wanted) for batch in self._tags.batches(data, rows)]
        mask = np.concatenate([np.asarray(part.to_numpy(zero_copy_only=False), np.bool_) for part in masks])
        return rows if mask.all() else rows[mask]

    def _lose(self, each: _Reading, following: int, why: str) -> None:
        lost = min(following, each.end) - each.next
        text = f"queue {each.queue}: messages {each.next}..{min(following, each.end)} are gone: {why}"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false reads what is left")
        log.warning("%s", text)
        self._lost += lost
        each.next = min(following, each.end)

    def _lose_hole(self, each: _Reading, offset: int) -> None:
        text = f"queue {each.queue}: message {each.next} or one behind it is missing, {offset} follows"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; failOnDataLoss=false reads what is left")
        log.warning("%s", text)

    def _gone(self, each: _Reading) -> None:
        text = f"queue {each.queue} does not exist any more: messages {each.next}..{each.end} are gone"
        if self._options.fail_on_data_loss:
            raise TopicNotFound(f"{text}; failOnDataLoss=false goes on without them")
        log.warning("%s", text)
        self._lost += each.end - each.next
        each.next = each.end

    def _timeout_s(self) -> float:
        return max(self._options.fetch_timeout_ms, self._options.retry_timeout_ms) / 1000

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s()


def _answer(address: str, call: Any) -> tuple[FetchReply, memoryview]:
    try:
        return decode_fetch(call.result())
    except grpc.RpcError as error:
        raise from_rpc_error(error, f"broker {address}") from error


def check_expression(cluster: Cluster, options: SourceOptions, queue: Queue) -> None:
    """Have the broker of ``queue`` take the filter, reading nothing. Raises the error that it answers."""
    expression = Sql(options.filter_sql) if options.filter_sql else options.sub_expression
    wanted = parse_subscription(queue.topic, expression)
    header = FetchHeader(client_id=CLIENT_ID, max_bytes=1)
    header.topics.add(topic=queue.topic, queue_ids=[queue.queue_id], offsets=[0], filter=wanted.filter)

    def ask(address: str, left_s: float) -> None:
        _answer(address, cluster.connections.fetch(address, header, left_s))

    cluster.calls.at(queue.broker, ask, options.retry_timeout_ms / 1000, reading=True)
