"""Where the queues of a topic begin and end, in one call; and how far archives have got."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    InvalidArgument,
    NotEnoughReplicas,
    OffsetOutOfRange,
    OutcomeUnknown,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, pipeline_pb2

from ...core.acknowledge import SEND_OK, Acknowledgements
from ...core.state import State
from ...core.state_log import StateLog
from ...store.lookup import Lookup
from ...store.reading import Reader
from ..exactly_once.writers import check_name
from .watermarks import ARCHIVED, REMOVED, Watermark


class PositionStore(Protocol):
    """What of the store this module needs."""

    @property
    def dispatched_offset(self) -> int: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def lookup(self) -> Lookup: ...


class PositionsRole(Protocol):
    """What of the role this module needs."""

    @property
    def is_master(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    def check_master(self) -> None: ...
    def can_acknowledge(self) -> bool: ...


class Positions:
    """Answers for one shard; event loop only."""

    def __init__(
        self,
        store: PositionStore,
        state: State,
        role: PositionsRole,
        acknowledgements: Acknowledgements,
        state_log: StateLog | None,
        *,
        catch_up: Callable[[], None],
    ) -> None:
        """``state_log``: None at a slave. ``catch_up``: have what is confirmed dispatched."""
        self._store = store
        self._state = state
        self._role = role
        self._acknowledgements = acknowledgements
        self.state_log = state_log
        self._catch_up = catch_up

    def query_topic(self, request: pipeline_pb2.TopicPositionsRequest) -> pipeline_pb2.TopicPositions:
        """Range, mean size and, with a time, the first offset at or after it, of each readable queue."""
        self._catch_up()
        topic = self._state.topic(request.topic)
        if topic is None and not self._role.is_master:
            raise BrokerUnavailable(
                f"topic {names.check_topic(request.topic)} is not known here, but this is no master: it may be behind"
            )
        if topic is None:
            raise TopicNotFound(
                f"topic {names.check_topic(request.topic)} does not exist at this broker", topic=request.topic
            )
        reply = pipeline_pb2.TopicPositions(
            topic=topic.name,
            epoch=self._role.epoch,
            is_master=self._role.is_master,
            created_ms=topic.created_ms,
            log_offset=self._store.dispatched_offset,
        )
        for queue_id in range(topic.read_queues):
            low, high = self._store.reader.queue_range(topic.name, queue_id)
            found = high
            if request.with_timestamp and low < high:
                found = self._store.lookup.search_offset(topic.name, queue_id, request.timestamp_ms)
            reply.queues.add(
                queue_id=queue_id,
                min_offset=low,
                max_offset=high,
                mean_record_bytes=self._store.lookup.mean_record_bytes(topic.name, queue_id) if low < high else 0,
                time_offset=found,
                time_matched=found < high,
            )
        return reply

    async def set_watermark(self, request: pipeline_pb2.ArchiveWatermark) -> Watermark | None:
        """Move, or with offset -1 remove, an archive's watermark; what holds afterwards.

        Raises:
            OffsetOutOfRange: beyond what can be read.
            InvalidArgument: back, without ``force``.
            NotMaster, NotEnoughReplicas: nothing was changed. OutcomeUnknown: ask again.
        """
        self._role.check_master()
        assert self.state_log is not None, "a master without a state log"
        self._catch_up()
        name, offset = check_name("archive", request.name), request.offset
        held = self._state.watermarks.get(name)
        if offset > self._store.dispatched_offset or offset < REMOVED:
            raise OffsetOutOfRange(
                f"archive {name}: watermark {offset} is not in 0..{self._store.dispatched_offset}, nor -1 to remove it"
            )
        if held is not None and REMOVED < offset < held.offset and not request.force:
            raise InvalidArgument(
                f"archive {name}: watermark {offset} is below {held.offset}: only force moves it back"
            )
        if (held.offset if held is not None else REMOVED) == offset:
            return held
        if not self._role.can_acknowledge():
            raise NotEnoughReplicas("fewer in-sync replicas than inSyncReplicas demands; nothing was changed")
        end = self.state_log.put(ARCHIVED, Watermark(name, offset, time.time_ns() // 1_000_000).to_json())
        if not self._acknowledgements.is_immediate:
            status = await self._acknowledgements.wait(end)
            if status != SEND_OK:
                raise OutcomeUnknown(f"archive {name}: done here, {broker_pb2.SendStatus.Name(status)}: ask again")
        return self._state.watermarks.get(name)

    def watermarks(self) -> list[Watermark]:
        """Every archive's watermark."""
        return self._state.watermarks.values()
