"""Numbered messages into one broker from a thread, with a record of what became of each, and reading them back."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc

from penstock.formats.record.batch import RecordBatch
from penstock.proto import frames
from penstock.proto.errors import PenstockError, Retryable, from_rpc_error
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.runtime.channel import open_channel
from tests.support.broker.requests import batch, receipt_of, wanting
from tests.support.waiting import wait_until

Position = tuple[int, int]
"""(queue id, queue offset)"""


PAUSE_S = 0.002
"""Between two sends: a loop without pause takes the processor from the brokers that a test waits for."""


@dataclass
class History:
    """What became of the messages sent. Written by the sending thread, read after it."""

    acknowledged: dict[Position, bytes] = field(default_factory=dict)
    unknown: int = 0  # stored or not: time-outs and broken connections
    refused: collections.Counter[str] = field(default_factory=collections.Counter)  # by the error's name
    sent: int = 0


class Writer:
    """Sends batches of numbered bodies to one broker, one after the other, until stopped."""

    def __init__(self, address: str, *, topic: str = "orders", queues: int = 4, batch_count: int = 5) -> None:
        self.history = History()
        self._address = address
        self._topic = topic
        self._queues = queues
        self._batch_count = batch_count
        self._padding = b"." * 200
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> History:
        """End after the batch in flight."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the writer hangs"
        return self.history

    def wait_acknowledged(self, more: int, timeout_s: float = 20) -> None:
        """Wait until ``more`` messages than now are acknowledged."""
        target = len(self.history.acknowledged) + more
        wait_until(lambda: len(self.history.acknowledged) >= target, timeout_s, f"{target} acknowledged messages")

    def _run(self) -> None:
        with open_channel(self._address) as channel:
            append = channel.stream_stream("/penstock.v1.BrokerData/Append")  # type: ignore[call-arg]
            turn = 0
            while not self._stop.is_set():
                self._send(append, turn % self._queues)
                turn += 1
                self._stop.wait(PAUSE_S)

    def _send(self, append: grpc.StreamStreamMultiCallable, queue_id: int) -> None:  # type: ignore[type-arg]
        history = self.history
        bodies = [b"%d %s" % (history.sent + i, self._padding) for i in range(self._batch_count)]
        history.sent += len(bodies)
        try:
            receipt = receipt_of(next(append(iter([batch(bodies, topic=self._topic, queue_id=queue_id)]), timeout=5)))
        except (grpc.RpcError, PenstockError) as broken:
            error = broken if isinstance(broken, PenstockError) else from_rpc_error(broken, self._address)
            by_broker = isinstance(error, Retryable) and "status" not in error.details
            if by_broker:
                history.refused[type(error).__name__] += len(bodies)
            else:
                history.unknown += len(bodies)
            self._stop.wait(0.02)
            return
        if receipt.status != broker_pb2.SEND_OK:
            history.unknown += len(bodies)
            return
        first = receipt.queue_offsets[0]
        for index, body in enumerate(bodies):
            history.acknowledged[queue_id, first + index] = body


@contextlib.contextmanager
def writing(address: str, **settings: int) -> Iterator[Writer]:
    """A writer at work for the length of the block."""
    writer = Writer(address, **settings)  # type: ignore[arg-type]
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def create_topic(address: str, topic: str = "orders", queues: int = 4) -> None:
    """Make the topic at one master."""
    config = common_pb2.TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=6)
    request = broker_pb2.CreateTopicRequest(config=config)
    with open_channel(address) as channel:
        try:
            BrokerStub(channel).CreateTopic(request, timeout=10, wait_for_ready=True)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            raise from_rpc_error(error, address) from None


def commit_offsets(address: str, group: str, offsets: dict[int, int], *, topic: str = "orders") -> None:
    """Commit as an administrator does: by queue id, without a session."""
    offset_list = common_pb2.TopicOffsets(topic=topic, queue_ids=list(offsets), offsets=list(offsets.values()))
    request = broker_pb2.CommitOffsetsRequest(group=group, client_id="test", offsets=[offset_list])
    with open_channel(address) as channel:
        try:
            reply = BrokerStub(channel).CommitOffsets(request, timeout=10, wait_for_ready=True)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            raise from_rpc_error(error, address) from None
    assert not reply.refused, f"commit refused: {reply.refused}"


def committed_offsets(address: str, group: str, *, topic: str = "orders") -> dict[int, int]:
    """What the group has committed, by queue id; nothing while the broker does not answer."""
    with open_channel(address) as channel:
        request = broker_pb2.QueryOffsetsRequest(group=group)
        try:
            reply = BrokerStub(channel).QueryOffsets(request, timeout=10)  # type: ignore[no-untyped-call]
        except grpc.RpcError:
            return {}
    return {
        queue_id: offset
        for each in reply.offsets
        if each.topic == topic
        for queue_id, offset in zip(each.queue_ids, each.offsets, strict=True)
        if offset >= 0
    }


def read_all(address: str, *, topic: str = "orders", queues: int = 4) -> dict[Position, bytes]:
    """Every message that the broker at ``address`` serves, by position."""
    found: dict[Position, bytes] = {}
    positions = dict.fromkeys(range(queues), 0)
    with open_channel(address) as channel:
        fetch = channel.unary_unary("/penstock.v1.BrokerData/Fetch")  # type: ignore[call-arg]
        while True:
            header = wanting(*positions.items(), topic=topic, max_bytes=1 << 20, max_bytes_per_queue=1 << 20)
            try:
                reply, body = frames.unpack(fetch(frames.pack(header), timeout=10), broker_pb2.FetchReply)
            except grpc.RpcError as error:
                raise from_rpc_error(error, address) from None
            before, start = len(found), 0
            for result in reply.results:
                records = RecordBatch(bytes(body[start : start + result.bytes]))
                start += result.bytes
                for offset, message in zip(records.queue_offsets, records.bodies(), strict=True):
                    found[result.queue_id, int(offset)] = message
                positions[result.queue_id] = result.next_offset
            if len(found) == before:
                return found


def missing(history: History, found: dict[Position, bytes]) -> list[Position]:
    """Acknowledged messages that are not there, or not with their bytes."""
    return [position for position, body in history.acknowledged.items() if found.get(position) != body]
