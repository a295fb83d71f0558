"""Calls to one broker, for what a test does and sees itself: no client between, no fault of the kit."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import grpc

from penstock.formats.record.layout import Host
from penstock.formats.record.properties import encode_properties
from penstock.formats.record.reading import RecordBatch
from penstock.proto import frames
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import from_bytes, from_rpc_error
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.proto.wire.data_pb2_grpc import BrokerDataStub
from penstock.runtime.channel import open_channel
from penstock.runtime.data.link import DataLink
from tests.support.client.faults import UNTOUCHED
from tests.support.record.encoding import encode_messages

Position = tuple[int, int]
"""(queue id, queue offset)"""
BORN_HOST = Host.parse("127.0.0.1:1")
SIZE = struct.Struct(">i")  # a record's first field
FETCH_BYTES = 16 << 20


class BrokerCalls:
    """Calls from any thread; errors come as the broker raised them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._stub = BrokerStub(self._channel)  # type: ignore[no-untyped-call]
        self._data = BrokerDataStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, request: Any, *, wait_for_ready: bool = True) -> Any:
        """The answer of one of the broker's methods."""
        return self._asked(getattr(self._stub, method), request, wait_for_ready)

    def _asked(self, method: Any, request: Any, wait_for_ready: bool = True) -> Any:
        try:
            return method(request, timeout=10, wait_for_ready=wait_for_ready, metadata=UNTOUCHED)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._address) from None

    def create_topic(self, topic: str, queues: int, *, update: bool = False) -> None:
        """Make or change the topic at this broker alone."""
        config = common_pb2.TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=6)
        self.call("CreateTopic", broker_pb2.CreateTopicRequest(config=config, update=update))

    def topics(self) -> dict[str, common_pb2.TopicConfig]:
        """All topics, by name."""
        return {each.topic: each for each in self.call("ListTopics", common_pb2.Empty()).topics}

    def append(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue_id: int = 0,
        *,
        tags: Sequence[str] | None = None,
        timeout_s: float = 10.0,
        wait_for_ready: bool = True,
    ) -> broker_pb2.AppendReceipt:
        """Store one batch, whose messages know of no producer."""
        properties = None if tags is None else [encode_properties({"TAGS": tag}) for tag in tags]
        records = encode_messages(topic, bodies, properties, queue_id, born_host=BORN_HOST)
        batch = frames.pack(broker_pb2.AppendHeader(topic=topic, count=len(bodies)), records)
        answer = self._answer(Method.APPEND, batch, timeout_s, wait_for_ready)
        return broker_pb2.AppendReceipt.FromString(answer)

    def _answer(self, method: Method, content: bytes, timeout_s: float = 10.0, wait_for_ready: bool = True) -> bytes:
        """What the data port answers."""
        port = self._asked(self._data.Open, common_pb2.Empty(), wait_for_ready).port
        with contextlib.closing(DataLink(self._address, port, metadata=dict(UNTOUCHED))) as link:
            link._socket.settimeout(timeout_s)
            link.send(1, method, content)
            while not (found := link.receive()):
                pass
        [frame] = found
        if frame.kind == Kind.ERROR:
            raise from_bytes(frame.content)
        return frame.content

    def records(self, topic: str, queue_ids: Iterable[int] = ()) -> dict[Position, bytes]:
        """What can be read of these queues, or of all of the topic's, queue by queue."""
        wanted = common_pb2.TopicQueues(topic=topic, queue_ids=queue_ids)
        ranges = {each.queue_id: each for each in self.call("QueryQueueRanges", wanted).ranges}
        at = {queue_id: each.min_offset for queue_id, each in ranges.items() if each.max_offset > each.min_offset}
        found: dict[Position, bytes] = {}
        while at:
            part = broker_pb2.FetchHeader.Topic(topic=topic, queue_ids=list(at), offsets=list(at.values()))
            request = frames.pack(broker_pb2.FetchHeader(topics=[part], max_bytes=FETCH_BYTES))
            reply, rest = frames.unpack(self._answer(Method.FETCH, request), broker_pb2.FetchReply)
            moved = [result for result in reply.results if result.count or result.next_offset > at[result.queue_id]]
            assert moved, f"not to be read: {at} {reply}"
            for result in reply.results:
                for offset in range(result.next_offset - result.count, result.next_offset):
                    (size,) = SIZE.unpack_from(rest)
                    found[result.queue_id, offset] = bytes(rest[:size])
                    rest = rest[size:]
                at[result.queue_id] = result.next_offset
                if result.next_offset >= ranges[result.queue_id].max_offset:
                    del at[result.queue_id]
        return dict(sorted(found.items()))

    def bodies(self, topic: str, *queue_ids: int) -> list[bytes]:
        """Their bodies as the producer gave them."""
        return RecordBatch(b"".join(self.records(topic, queue_ids).values())).bodies()

    def record_at(self, position: int) -> bytes:
        """The record at a physical offset."""
        (record,) = self.call("ViewMessage", broker_pb2.ViewMessageRequest(physical_offset=position)).records
        return record

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit as an administrator does: by queue id, without a session."""
        committed = common_pb2.TopicOffsets(topic=topic, queue_ids=list(offsets), offsets=list(offsets.values()))
        request = broker_pb2.CommitOffsetsRequest(group=group, client_id="test", offsets=[committed])
        reply = self.call("CommitOffsets", request)
        assert not reply.refused, f"commit refused: {reply.refused}"

    def committed(self, group: str, topic: str, *, wait_for_ready: bool = True) -> dict[int, int]:
        """What the group has committed, by queue id."""
        request = broker_pb2.QueryOffsetsRequest(group=group)
        return {
            queue_id: offset
            for each in self.call("QueryOffsets", request, wait_for_ready=wait_for_ready).offsets
            if each.topic == topic
            for queue_id, offset in zip(each.queue_ids, each.offsets, strict=True)
            if offset >= 0
        }

    def claimed(self, group: str) -> dict[str, list[int]]:
        """The group's members by client id, with the queue ids of all topics that each of them holds."""
        if not any(each.group == group for each in self.call("ListGroups", common_pb2.Empty()).groups):
            return {}
        members = self.call("DescribeGroup", broker_pb2.GroupName(group=group)).members
        return {each.client_id: [q for claimed in each.claimed for q in claimed.queue_ids] for each in members}
