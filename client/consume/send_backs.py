"""Calls that give messages back to the brokers that have them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence

from penstock.proto.wire.retry_pb2 import SendBackReply, SendBackRequest
from penstock.proto.wire.retry_pb2_grpc import RetryStub

from ..cluster import Calls, Service
from ..message import MessageQueue

RETRY: Service = RetryStub
COUNT_MAX = 4096
"""Messages of one call; brokers take no more."""
BYTES_MAX = 1 << 20
"""The records' bytes, where a call has several messages."""


class SendBacks:
    """What one consumer gives back. Thread-safe; one call at a time at each broker group.

    Calls are numbered, and a number stands for its messages: a call that is made again after a lost answer, also at the
    next master, stores nothing again. Brokers remember the last numbers only: no call is made with the next one before
    the one before has its answer, or is given up.
    """

    def __init__(self, calls: Calls, group: str, max_reconsume_times: int | None) -> None:
        self._calls = calls
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._lock = threading.Lock()  # guards what follows
        self._turns: dict[str, threading.Lock] = {}  # by broker name; held while a call is under way
        self._numbers: dict[str | MessageQueue, tuple[int, int]] = {}  # producer id, sequence of the last call

    def turn(self, broker_name: str) -> threading.Lock:
        """Whoever holds it is the only one to make calls at that broker group."""
        with self._lock:
            return self._turns.setdefault(broker_name, threading.Lock())

    def request(
        self,
        queue: MessageQueue,
        offsets: Sequence[int],
        *,
        delay_level: int = 0,
        reconsume_times: Sequence[int] = (),
        is_queues_own: bool = False,
    ) -> SendBackRequest:
        """The next call for messages of ``queue``, at ``offsets``, which ascend; the turn is the caller's.

        ``is_queues_own``: numbered for the queue by itself; calls of other queues may come before it is made again.
        """
        key = queue if is_queues_own else queue.broker_name
        with self._lock:
            producer_id, last = self._numbers.get(key) or (secrets.randbits(63) | 1, 0)
            self._numbers[key] = producer_id, last + 1
        return SendBackRequest(
            group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offsets=offsets,
            delay_levels=[delay_level] * len(offsets) if delay_level else (),
            reconsume_times=reconsume_times,
            max_reconsume_times=self._max_reconsume_times,
            producer_id=producer_id,
            sequence=last + 1,
        )

    def make(self, broker_name: str, request: SendBackRequest, timeout_s: float) -> SendBackReply:
        """The master's answer, also for one that was made before.

        Raises:
            PenstockError: the last one; with a retryable one nobody knows whether the call was done.
            LaneForgotten: nobody will ever know: the same call would be told the same.
        """

        def call(address: str, left_s: float) -> SendBackReply:
            try:
                reply: SendBackReply = self._calls.connections.call(address, "SendBack", request, left_s, service=RETRY)
                return reply
            finally:
                request.again = True

        return self._calls.on(broker_name, call, timeout_s)

    def send(self, queue: MessageQueue, offsets: Sequence[int], timeout_s: float, *, delay_level: int) -> list[int]:
        """Make one call; the offsets that have no record any more. Errors as of :meth:`make`."""
        with self.turn(queue.broker_name):
            request = self.request(queue, offsets, delay_level=delay_level)
            return list(self.make(queue.broker_name, request, timeout_s).gone)


def parts(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Offsets, by their records' sizes, in ascending parts that are as large as a call may be."""
    part: list[int] = []
    total = 0
    for offset, size in sorted(sizes.items()):
        total += size
        if part and (len(part) == COUNT_MAX or total > BYTES_MAX):
            yield part
            part, total = [], size
        part.append(offset)
    if part:
        yield part
