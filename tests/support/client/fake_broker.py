"""One broker in memory, behind a real gRPC server on a free port, with faults on demand.

It keeps the contract of the wire (append with duplicate table, fetch with long poll, offsets, topics) and nothing else:
no disk, no replication, no membership. Records are patched in plain Python, one at a time.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc

from penstock.proto import frames
from penstock.proto.errors import (
    CorruptBatch,
    GroupNotFound,
    MessageNotFound,
    PenstockError,
    TopicExists,
    TopicNotFound,
    to_bytes,
    to_metadata,
)
from penstock.proto.wire import broker_pb2, broker_pb2_grpc, common_pb2
from penstock.runtime.channel import SERVER_OPTIONS

if TYPE_CHECKING:
    from tests.support.client.fake_cluster import FakeCluster

QUEUE_ID_AT, QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, STORE_TIMESTAMP_AT, STORE_HOST_AT = 12, 20, 28, 56, 64


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def split_records(records: bytes | memoryview) -> list[bytes]:
    """The records that are laid end to end in ``records``."""
    found, position = [], 0
    while position < len(records):
        (size,) = struct.unpack_from(">i", records, position)
        if size < 91 or position + size > len(records):
            raise CorruptBatch(f"record {len(found)}: bad size {size}", index=len(found))
        found.append(bytes(records[position : position + size]))
        position += size
    return found


def body_of(record: bytes) -> bytes:
    """The stored body of one record (IPv4 hosts)."""
    (length,) = struct.unpack_from(">i", record, 84)
    return record[88 : 88 + length]


def properties_of(record: bytes) -> bytes:
    """The property string of one record (version 1, IPv4 hosts)."""
    (length,) = struct.unpack_from(">i", record, 84)
    topic_length = record[88 + length]
    return record[88 + length + 1 + topic_length + 2 :]


def fail(context: grpc.ServicerContext, error: PenstockError) -> None:
    context.set_trailing_metadata(to_metadata(error))
    context.abort(error.grpc_status, error.message)


class FakeBroker(broker_pb2_grpc.BrokerServicer):
    """One broker. ``queues[topic, queue_id]`` are the stored records; ``appends`` every Append header, in order."""

    def __init__(self, cluster: FakeCluster, broker_name: str, broker_id: int = 0) -> None:
        self.cluster = cluster
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.topics: dict[str, common_pb2.TopicConfig] = {}
        self.groups: dict[str, common_pb2.GroupConfig] = {}
        self.queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.log: dict[int, bytes] = {}  # physical offset -> record
        self.log_end = 0
        self.sequences: dict[tuple[int, str, int], tuple[int, broker_pb2.AppendReceipt]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.appends: list[broker_pb2.AppendHeader] = []
        self.append_hook: Callable[[broker_pb2.AppendHeader], PenstockError | None] | None = None
        self.answers_to_drop = 0  # store, then break the call
        self.gate = threading.Event()  # cleared: appends wait before they store
        self.gate.set()
        self.damaged: set[tuple[str, int, int]] = set()  # topic, queue id, offset: told to who asks
        self.verified = 0  # fetches that did
        self.streams = 0  # of appends that were opened
        self._refusals: list[PenstockError] = []
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(32), options=SERVER_OPTIONS)
        broker_pb2_grpc.add_BrokerServicer_to_server(self, server)
        methods = {
            "Append": grpc.stream_stream_rpc_method_handler(self._append),
            "Fetch": grpc.unary_unary_rpc_method_handler(self._fetch),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.v1.BrokerData", methods),))
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Die: break every call. What is stored stays, for :meth:`start` on the same port."""
        server, self._server = self._server, None
        self.gate.set()
        if server is not None:
            with self._changed:
                self._changed.notify_all()
            server.stop(grace=0).wait()

    def refuse_next(self, error: PenstockError, times: int = 1) -> None:
        """End the next appends with ``error`` without storing."""
        self._refusals.extend([error] * times)

    def bodies(self, topic: str, queue_id: int | None = None) -> list[bytes]:
        """Stored bodies of one queue, or of all queues of ``topic``, queue by queue."""
        with self._changed:
            keys = sorted(key for key in self.queues if key[0] == topic and queue_id in (None, key[1]))
            return [body_of(record) for key in keys for record in self.queues[key]]

    def store(self, topic: str, records: bytes | memoryview) -> broker_pb2.AppendReceipt:
        """Place records as a broker does; for tests that need stored messages without a producer."""
        with self._changed:
            config = self.topics.get(topic)
            if config is None:
                raise TopicNotFound(f"topic {topic!r} does not exist")
            receipt = broker_pb2.AppendReceipt(physical_offset=self.log_end, store_timestamp_ms=now_ms())
            firsts: dict[int, int] = {}
            for index, record in enumerate(split_records(records)):
                patched = bytearray(record)
                (queue_id,) = struct.unpack_from(">i", patched, QUEUE_ID_AT)
                if not 0 <= queue_id < config.write_queues:
                    raise CorruptBatch(f"record {index}: queue {queue_id} of {config.write_queues}", index=index)
                stored = self.queues[topic, queue_id]
                firsts.setdefault(queue_id, len(stored))
                struct.pack_into(">q", patched, QUEUE_OFFSET_AT, len(stored))
                struct.pack_into(">q", patched, PHYSICAL_OFFSET_AT, self.log_end)
                struct.pack_into(
                    ">q4si", patched, STORE_TIMESTAMP_AT, receipt.store_timestamp_ms, b"\x7f\0\0\1", self.port
                )
                stored.append(bytes(patched))
                self.log[self.log_end] = bytes(patched)
                self.log_end += len(patched)
            receipt.queue_ids.extend(firsts)
            receipt.queue_offsets.extend(firsts.values())
            self._changed.notify_all()
            return receipt

    def _append(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.streams += 1
        for message in requests:
            try:
                answer = broker_pb2.AppendAnswer(receipt=self._store_once(message, context))
            except PenstockError as error:
                answer = broker_pb2.AppendAnswer(error=to_bytes(error))
            yield answer.SerializeToString()

    def _store_once(self, message: bytes, context: grpc.ServicerContext) -> broker_pb2.AppendReceipt:
        header, records = frames.unpack(message, broker_pb2.AppendHeader)
        self.appends.append(header)
        self.gate.wait()
        if self._refusals:
            raise self._refusals.pop(0)
        refusal = self.append_hook(header) if self.append_hook else None
        if refusal is not None:
            raise refusal
        lane = (header.producer_id, header.topic, header.lane)
        with self._changed:
            last = self.sequences.get(lane)
            if header.producer_id and last is not None and header.sequence <= last[0]:
                receipt = broker_pb2.AppendReceipt()
                receipt.CopyFrom(last[1])
                receipt.duplicate = True
            else:
                receipt = self.store(header.topic, records)
                self.sequences[lane] = (header.sequence, receipt)
            dropped = self.answers_to_drop > 0
            self.answers_to_drop -= dropped
        if dropped:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return receipt

    def _fetch(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        header, _ = frames.unpack(message, broker_pb2.FetchHeader)
        deadline = time.monotonic() + header.max_wait_ms / 1000
        with self._changed:
            while True:
                reply, records = self._read(header)
                left = deadline - time.monotonic()
                if records or reply.results or left <= 0 or not self.alive or not context.is_active():
                    return frames.pack(reply, *records)
                self._changed.wait(min(left, 0.5))

    def _read(self, header: broker_pb2.FetchHeader) -> tuple[broker_pb2.FetchReply, list[bytes]]:
        reply, found = broker_pb2.FetchReply(suggested_broker_id=self.broker_id), []
        status, left = broker_pb2.FetchReply, header.max_bytes
        self.verified += header.verify
        for topic_index, topic in enumerate(header.topics):
            for queue_id, offset in zip(topic.queue_ids, topic.offsets, strict=True):
                config, stored = self.topics.get(topic.topic), self.queues.get((topic.topic, queue_id), [])
                result = status.Result(topic_index=topic_index, queue_id=queue_id, max_offset=len(stored))
                result.next_offset = min(offset, len(stored))
                if config is None or queue_id >= config.read_queues:
                    result.status = status.QUEUE_NOT_FOUND
                elif offset > len(stored):
                    result.status = status.OFFSET_OVERFLOW
                elif offset < 0:
                    result.status, result.next_offset = status.OFFSET_TOO_SMALL, 0
                elif offset == len(stored):
                    continue
                elif header.verify and (topic.topic, queue_id, offset) in self.damaged:
                    result.status, result.next_offset, result.problem = status.DAMAGED, offset + 1, "file: damaged"
                else:
                    queue_left = min(left, header.max_bytes_per_queue or left)
                    for number, record in enumerate(stored[offset:], offset):
                        if found and (queue_left < len(record)):
                            break
                        if header.verify and (topic.topic, queue_id, number) in self.damaged:
                            break
                        found.append(record)
                        result.bytes += len(record)
                        result.count += 1
                        queue_left -= len(record)
                        left -= len(record)
                    if not result.count:
                        continue
                    result.status, result.next_offset = status.FOUND, offset + result.count
                reply.results.append(result)
        return reply, found

    # Broker service: topics, groups, offsets, messages.

    def CreateTopic(self, request: Any, context: grpc.ServicerContext) -> Any:
        config, known = request.config, self.topics.get(request.config.topic)
        if request.auto and not self.cluster.auto_create_topics:
            fail(context, TopicNotFound(f"topic {config.topic!r} does not exist and autoCreateTopicEnable is false"))
        if known is not None and not request.update:
            if not request.auto and (known.read_queues, known.write_queues) != (
                config.read_queues,
                config.write_queues,
            ):
                fail(context, TopicExists(f"topic {config.topic!r} exists with {known.write_queues} queues"))
            return known
        self.cluster.put_topic(config, [self])
        return self.topics[config.topic]

    def DeleteTopic(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.topics.pop(request.topic, None) is None:
            fail(context, TopicNotFound(f"topic {request.topic!r} does not exist"))
        self.cluster.push_routes()
        return common_pb2.Empty()

    def ListTopics(self, request: Any, context: grpc.ServicerContext) -> Any:
        return broker_pb2.TopicConfigs(topics=list(self.topics.values()))

    def CreateGroup(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.groups[request.group] = request
        return request

    def DeleteGroup(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.groups.pop(request.group, None) is None:
            fail(context, GroupNotFound(f"group {request.group!r} does not exist"))
        return common_pb2.Empty()

    def ListGroups(self, request: Any, context: grpc.ServicerContext) -> Any:
        return broker_pb2.GroupConfigs(groups=list(self.groups.values()))

    def DescribeGroup(self, request: Any, context: grpc.ServicerContext) -> Any:
        config = self.groups.get(request.group)
        if config is None:
            fail(context, GroupNotFound(f"group {request.group!r} does not exist"))
        return broker_pb2.GroupDescription(config=config, committed=self._committed(request.group))

    def CommitOffsets(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.groups.setdefault(request.group, common_pb2.GroupConfig(group=request.group, consume_enable=True))
        for offsets in request.offsets:
            for queue_id, offset in zip(offsets.queue_ids, offsets.offsets, strict=True):
                self.committed[request.group, offsets.topic, queue_id] = offset
        return broker_pb2.CommitOffsetsReply()

    def QueryOffsets(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not request.queues:
            return broker_pb2.QueryOffsetsReply(offsets=self._committed(request.group))
        reply = broker_pb2.QueryOffsetsReply()
        for wanted in request.queues:
            offsets = [self.committed.get((request.group, wanted.topic, queue_id), -1) for queue_id in wanted.queue_ids]
            reply.offsets.add(topic=wanted.topic, queue_ids=wanted.queue_ids, offsets=offsets)
        return reply

    def _committed(self, group: str) -> list[common_pb2.TopicOffsets]:
        found: dict[str, common_pb2.TopicOffsets] = {}
        for (name, topic, queue_id), offset in sorted(self.committed.items()):
            if name == group:
                offsets = found.setdefault(topic, common_pb2.TopicOffsets(topic=topic))
                offsets.queue_ids.append(queue_id)
                offsets.offsets.append(offset)
        return list(found.values())

    def QueryQueueRanges(self, request: Any, context: grpc.ServicerContext) -> Any:
        config = self.topics.get(request.topic)
        if config is None:
            fail(context, TopicNotFound(f"topic {request.topic!r} does not exist"))
        reply = broker_pb2.QueueRanges(topic=request.topic)
        for queue_id in request.queue_ids or range(config.read_queues if config else 0):
            stored = self.queues.get((request.topic, queue_id), [])
            last = struct.unpack_from(">q", stored[-1], STORE_TIMESTAMP_AT)[0] if stored else 0
            reply.ranges.add(queue_id=queue_id, min_offset=0, max_offset=len(stored), last_store_timestamp_ms=last)
        return reply

    def SearchOffset(self, request: Any, context: grpc.ServicerContext) -> Any:
        stored = self.queues.get((request.topic, request.queue_id), [])
        times = [struct.unpack_from(">q", record, STORE_TIMESTAMP_AT)[0] for record in stored]
        return broker_pb2.QueueOffset(offset=sum(stamp < request.timestamp_ms for stamp in times))

    def Status(self, request: Any, context: grpc.ServicerContext) -> Any:
        identity = self.cluster.member(self)
        return broker_pb2.BrokerStatus(
            identity=common_pb2.BrokerIdentity(
                cluster=self.cluster.name, broker_name=self.broker_name, broker_id=self.broker_id, address=self.address
            ),
            role=identity.role,
            epoch=1,
            pid=1,
            max_offset=self.log_end,
            flushed_offset=self.log_end,
            confirm_offset=self.log_end,
            dispatched_offset=self.log_end,
        )

    def QueryMessages(self, request: Any, context: grpc.ServicerContext) -> Any:
        wanted = f"KEYS\x01{request.key}\x02".encode()
        found = [
            record
            for (topic, _), stored in self.queues.items()
            for record in stored
            if topic == request.topic and wanted in properties_of(record)
        ]
        return broker_pb2.MessageRecords(records=found[: request.max_count])

    def ViewMessage(self, request: Any, context: grpc.ServicerContext) -> Any:
        record = self.log.get(request.physical_offset)
        if record is None:
            fail(context, MessageNotFound(f"no message at {request.physical_offset}"))
        return broker_pb2.MessageRecords(records=[record or b""])
