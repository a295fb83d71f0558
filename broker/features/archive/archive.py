"""What pipelines ask of a shard's log: where the queues of a topic begin and end, and how far archives have got."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.proto import names
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, OffsetOutOfRange, TopicNotFound
from penstock.proto.wire import common_pb2, pipeline_pb2

from ...core.core import Core
from ...core.feature import Feature, Hold
from ...core.metrics import Families
from ...core.wire import Service, check_name, in_turns, service
from .watermarks import ARCHIVED, REMOVED, Watermark, Watermarks

log = logging.getLogger(__name__)


class Archive(Feature):
    """Positions, and the watermarks that retention waits for."""

    tables = (Watermarks,)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._table = core.tables[Watermarks]
        self.files_unarchived = 0  # log files that were deleted before an archive had them

    def services(self) -> Iterable[Service]:
        yield service(
            pipeline_pb2.DESCRIPTOR.services_by_name["Positions"],
            before=self.core.dispatcher.catch_up,
            QueryTopic=self._query_topic,
            SetArchiveWatermark=self._set_watermark,
            ListArchiveWatermarks=self._list_watermarks,
        )

    def holds(self) -> Iterable[Hold]:
        mark = self._table.lowest()
        if mark is not None:
            yield Hold(f"archive {mark.name} has not got it", mark.offset, self._on_taken)

    def describe(self, families: Families) -> None:
        families.counter(
            "penstock_log_files_deleted_unarchived", "Deleted before an archive had them", self.files_unarchived
        )
        marks = [((mark.name,), mark.offset) for mark in self._table.values()]
        families.gauges("penstock_archive_watermark", "First byte not archived", ("archive",), marks)

    async def set_watermark(self, name: str, offset: int, *, force: bool) -> Watermark | None:
        """Move, or with offset -1 remove, an archive's watermark; what holds afterwards.

        Raises:
            OffsetOutOfRange: beyond what can be read.
            InvalidArgument: back, without ``force``.
            NotMaster, NotEnoughReplicas: nothing was changed. OutcomeUnknown: ask again.
        """
        self.core.role.check_master()
        check_name("archive", name)
        held, readable = self._table.get(name), self.core.store.dispatched_offset
        if not REMOVED <= offset <= readable:
            raise OffsetOutOfRange(f"archive {name}: watermark {offset} is not in 0..{readable}, nor -1 to remove it")
        if held is not None and REMOVED < offset < held.offset and not force:
            raise InvalidArgument(
                f"archive {name}: watermark {offset} is below {held.offset}: only force moves it back"
            )
        journal = self.core.writable()
        end = journal.put(ARCHIVED, Watermark(name, offset, self.core.clock.wall_ms()).to_json())
        await self.core.acknowledgements.safe(end, f"archive {name}")
        return self._table.get(name)

    def _on_taken(self, base: int, end: int) -> None:
        self.files_unarchived += 1
        mark = self._table.lowest()
        log.error("log file deleted before it was archived base=%d archive=%s", base, mark.name if mark else "")

    async def _query_topic(self, request: pipeline_pb2.TopicPositionsRequest) -> pipeline_pb2.TopicPositions:
        """Range, mean size and, with a time, the first offset at or after it, of each readable queue.

        With an epoch, where each queue's messages of that epoch end, if later ones can be read behind them. Of queues
        that the topic had before, the range.
        """
        store, role = self.core.store, self.core.role
        topic = self.core.tables.topics.get(request.topic)
        if topic is None:
            name = names.check_topic(request.topic)
            if not role.is_master:
                raise BrokerUnavailable(f"topic {name} is not known here, but this is no master: it may be behind")
            raise TopicNotFound(f"topic {name} does not exist at this broker", topic=name)
        epoch = self.core.shown_epoch
        reply = pipeline_pb2.TopicPositions(
            topic=topic.name,
            epoch=epoch,
            is_master=role.is_master,
            created_ms=topic.created_ms,
            log_offset=store.dispatched_offset,
        )
        async for queue_id in in_turns(range(topic.read_queues)):
            low, high = store.reader.queue_range(topic.name, queue_id)
            found = high
            if request.with_timestamp and low < high:
                found = store.lookup.search_offset(topic.name, queue_id, request.timestamp_ms)
            reply.queues.add(
                queue_id=queue_id,
                min_offset=low,
                max_offset=high,
                mean_record_bytes=store.lookup.mean_record_bytes(topic.name, queue_id) if low < high else 0,
                time_offset=found,
                time_matched=found < high,
                cut_offset=self.core.cut_of(request.epoch, topic.name, queue_id),
            )
        for queue_id in sorted(store.reader.queue_ids(topic.name)):
            if queue_id >= topic.read_queues:
                low, high = store.reader.queue_range(topic.name, queue_id)
                reply.removed.add(queue_id=queue_id, min_offset=low, max_offset=high)
        if epoch != self.core.shown_epoch:
            raise BrokerUnavailable(
                f"topic {topic.name}: a mastership began while its queues were looked at: ask again"
            )
        return reply

    async def _set_watermark(self, request: pipeline_pb2.ArchiveWatermark) -> pipeline_pb2.ArchiveWatermark:
        held = await self.set_watermark(request.name, request.offset, force=request.force)
        return _to_wire(held) if held else pipeline_pb2.ArchiveWatermark(name=request.name, offset=REMOVED)

    async def _list_watermarks(self, request: common_pb2.Empty) -> pipeline_pb2.ArchiveWatermarks:
        return pipeline_pb2.ArchiveWatermarks(watermarks=[_to_wire(each) for each in self._table.values()])


def _to_wire(mark: Watermark) -> pipeline_pb2.ArchiveWatermark:
    return pipeline_pb2.ArchiveWatermark(name=mark.name, offset=mark.offset, updated_timestamp_ms=mark.updated_ms)
