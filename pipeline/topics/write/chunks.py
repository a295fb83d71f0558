"""Sending chunks: each target's in their order, all targets side by side, every one until it is acknowledged."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.client.cluster import Calls, local_host, pause_before_retry_s, reworded, store_host_of
from penstock.formats.columns import Column
from penstock.formats.destination import Destination
from penstock.formats.record.framing import frame_batch, marked
from penstock.formats.record.layout import Host, SysFlag
from penstock.formats.record.producer_mark import mark_property
from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument, MessageTooLarge, OutcomeUnknown, PenstockError
from penstock.proto.wire.broker_pb2 import FLUSH_DISK_TIMEOUT, SEND_OK, AppendHeader
from penstock.proto.wire.pipeline_pb2 import StageHeader, StageReply

from ..waiting import Reminder
from .routing import Piece

COUNT_MAX = 65_536
WAIT_S_MAX = 0.5
_TOO_MUCH = (
    "the sink sends about batchBytes at once: give this option less than the brokers' maxMessageSize (an idempotent "
    "writer keeps that of its first run, so with a new checkpoint or producerId), or raise that"
)
PENDING_MAX = 4  # chunks that wait behind the one under way, per target

LaneKey = tuple[Destination, str, int]
"""Destination, broker, lane."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What numbers a chunk: the lane is the target's, the sequence grows with batch and chunk."""

    producer_id: int
    lane: int
    sequence: int
    digest: int = 0
    """What the lane holds of the batch up to here, see :func:`.content.running`; 0: nobody will ask."""


class StageTo(NamedTuple):
    """Where an exactly-once writer's chunks belong: fields of a ``StageHeader``."""

    writer: str
    batch: int
    key: str
    coordinator: str
    keep_ms: int


@dataclass(slots=True)
class Chunk:
    """One call's records. ``number``: its place among the chunks that go to its broker."""

    destination: Destination
    broker: str
    bodies: Column
    properties: Column
    queue_ids: np.ndarray[Any, np.dtype[np.int32]]
    sys_flag: int
    mark: Mark | None
    number: int = 0


@dataclass(slots=True)
class _Lane:
    waiting: deque[Chunk] = field(default_factory=deque)
    chunk: Chunk | None = None  # under way, or to be tried again
    call: Any = None
    address: str = ""
    attempt: int = 0
    not_before: float = 0.0
    deadline: float = 0.0
    reminder: Reminder | None = None  # since the chunk's first try failed


class Sender:
    """Sends chunks of one task; for one thread. A call takes ``send_timeout_ms``, a chunk's tries ``timeout_s``.

    ``stage_to``: keep them aside instead of appending them. ``writer`` and ``run``: who appends chunks with marks.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        send_timeout_ms: int,
        timeout_s: float,
        stage_to: StageTo | None = None,
        writer: str = "",
        run: str = "",
    ) -> None:
        self._calls = calls
        self._writer, self._run = writer, run
        self._send_timeout_s = send_timeout_ms / 1000
        self._timeout_s = timeout_s
        self._stage_to = stage_to
        self._lanes: dict[LaneKey, _Lane] = {}
        self._news = threading.Event()  # set by whoever reads the answers
        self._born: dict[str, Host] = {}
        self.staged: dict[str, int] = {}  # broker -> chunks
        self.records = 0

    def send(self, key: LaneKey, chunk: Chunk) -> None:
        """Send behind everything sent with the same ``key``; waits while too much is under way.

        Raises PenstockError: a chunk, this one or one before, was refused, or not acknowledged in time.
        """
        if self._stage_to is not None:
            chunk.number = self.staged.get(chunk.broker, 0)
            self.staged[chunk.broker] = chunk.number + 1
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting.append(chunk)
        self._drive(lambda: len(lane.waiting) > PENDING_MAX)

    def finish(self) -> None:
        """Wait until everything is acknowledged. Raises as :meth:`send`."""
        self._drive(lambda: any(lane.chunk or lane.waiting for lane in self._lanes.values()))

    def cancel(self) -> None:
        """Give up what is under way."""
        for lane in self._lanes.values():
            if lane.call is not None:
                lane.call.cancel()

    def _drive(self, goes_on: Callable[[], bool]) -> None:
        """Start what can start and settle what is done, while ``goes_on()``."""
        while True:
            for lane in self._lanes.values():
                self._step(lane)
            if not goes_on():
                return
            self._wait()

    def _step(self, lane: _Lane) -> None:
        if lane.call is not None and lane.call.done():
            self._settle(lane)
        if lane.chunk is None and lane.waiting:
            lane.chunk = lane.waiting.popleft()
            lane.attempt, lane.not_before = 0, 0.0
            lane.deadline = time.monotonic() + self._timeout_s
        if lane.chunk is not None and lane.call is None and time.monotonic() >= lane.not_before:
            self._start(lane, lane.chunk)

    def _wait(self) -> None:
        """Until some call is done, or it is time for the next try."""
        now = time.monotonic()
        waits = [lane.not_before - now for lane in self._lanes.values() if lane.chunk is not None and lane.call is None]
        self._news.wait(max(0.001, min([WAIT_S_MAX, *waits])))
        self._news.clear()

    def _start(self, lane: _Lane, chunk: Chunk) -> None:
        try:
            lane.address = self._calls.directory.address(chunk.broker, fresh=lane.attempt > 0)
            timeout_s = max(0.1, min(self._send_timeout_s, lane.deadline - time.monotonic()))
            message = self._frame(chunk, lane.address, timeout_s, again=lane.attempt > 0)
            connections = self._calls.connections
            if self._stage_to is None:
                lane.call = connections.append(lane.address, message, timeout_s)
            else:
                lane.call = connections.ask(lane.address, Method.STAGE, message, StageReply.FromString, timeout_s)
            lane.call.add_done_callback(lambda _: self._news.set())
        except PenstockError as error:
            self._failed(lane, error)

    def _settle(self, lane: _Lane) -> None:
        call, lane.call = lane.call, None
        assert lane.chunk is not None
        try:
            answer = call.result()
            if self._stage_to is None and answer.status != SEND_OK:
                what = "disk" if answer.status == FLUSH_DISK_TIMEOUT else "replicas"
                raise OutcomeUnknown(f"broker {lane.address}: stored, {what} did not confirm in time")
        except PenstockError as error:
            self._failed(lane, error)
        else:
            self._done(lane)

    def _done(self, lane: _Lane) -> None:
        assert lane.chunk is not None
        self.records += len(lane.chunk.queue_ids)
        lane.chunk = lane.reminder = None

    def _failed(self, lane: _Lane, error: PenstockError) -> None:
        chunk = lane.chunk
        assert chunk is not None
        last = error.details.get("last_sequence") if isinstance(error, InvalidArgument) else None
        if chunk.mark is not None and last is not None and int(last) >= chunk.mark.sequence:
            self._done(lane)  # stored by an earlier attempt, whose receipt nobody needs
            return
        lane.attempt += 1
        pause_s = pause_before_retry_s(error, lane.attempt, lane.deadline)
        if pause_s is None:
            if isinstance(error, MessageTooLarge) and "index" not in error.details and len(chunk.queue_ids) > 1:
                raise reworded(error, _TOO_MUCH) from error
            raise error
        if lane.reminder is None:
            lane.reminder = Reminder(f"a task that writes to topic {chunk.destination.topic} at {chunk.broker}")
        lane.reminder.tell(error)
        lane.not_before = time.monotonic() + pause_s

    def _frame(self, chunk: Chunk, address: str, timeout_s: float, *, again: bool) -> bytes:
        born = self._born.setdefault(address, local_host(address))
        store_flag = SysFlag.STORE_HOST_V6 if store_host_of(address).is_ipv6 else 0
        properties, mark, count = chunk.properties, chunk.mark, len(chunk.queue_ids)
        if mark is not None:
            first = mark_property(mark.producer_id, 0, mark.lane, mark.sequence, count, mark.digest)
            properties = marked(properties, first, count)
        return frame_batch(
            self._header(chunk, count, timeout_s, again),
            chunk.bodies,
            properties,
            topic=chunk.destination.stored_topic,
            queue_ids=chunk.queue_ids,
            sys_flag=chunk.sys_flag | store_flag,
            born_host=born,
        )

    def _header(self, chunk: Chunk, count: int, timeout_s: float, again: bool) -> AppendHeader | StageHeader:
        flags = chunk.destination.flags
        if self._stage_to is not None:
            to = self._stage_to._asdict()
            return StageHeader(chunk=chunk.number, topic=chunk.destination.topic, count=count, **to, **flags)
        timeout_ms = max(1, int(timeout_s * 900))
        header = AppendHeader(topic=chunk.destination.topic, count=count, timeout_ms=timeout_ms, again=again, **flags)
        if chunk.mark is not None:
            header.producer_id = chunk.mark.producer_id
            header.lane = chunk.mark.lane
            header.sequence = chunk.mark.sequence
            header.writer, header.run = self._writer, self._run
        return header


def cut(piece: Piece, bytes_max: int, topic_bytes: int) -> list[Piece]:
    """The piece in parts of about ``bytes_max`` each, at least one row: the same parts whenever it is cut again.

    ``topic_bytes``: length of the topic, which every record repeats.
    """
    count = len(piece.queue_ids)
    sizes = piece.bodies.lengths + piece.properties.lengths + 128 + topic_bytes
    ends = np.cumsum(sizes)
    parts = []
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + bytes_max, side="right"))
        stop = min(max(stop, start + 1), start + COUNT_MAX, count)
        parts.append(piece.part(start, stop))
        start = stop
    return parts


def divided(piece: Piece, like: list[Piece]) -> list[Piece]:
    """The piece in parts of as many rows as ``like`` has."""
    stops = itertools.accumulate((len(each.queue_ids) for each in like), initial=0)
    return [piece.part(start, stop) for start, stop in itertools.pairwise(stops)]
