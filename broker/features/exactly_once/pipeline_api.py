"""The wire's methods of :mod:`.staging` and :mod:`.positions`."""

from __future__ import annotations

from typing import Any

from penstock.proto.wire import common_pb2, pipeline_pb2
from penstock.proto.wire.pipeline_pb2_grpc import PositionsServicer, StagingServicer
from penstock.runtime.channel import reporting

from ...core.producers import ProducerTable
from ..archive.positions import Positions
from ..archive.watermarks import REMOVED, Watermark
from .staging import Staging
from .staging_table import Keys, Writer
from .writers import Writers


class StagingService(StagingServicer):
    """``penstock.v1.Staging``."""

    def __init__(self, writers: Writers, staging: Staging, producers: ProducerTable) -> None:
        self._writers = writers
        self._staging = staging
        self._producers = producers

    @reporting
    async def OpenWriter(self, request: pipeline_pb2.OpenWriterRequest, context: Any) -> pipeline_pb2.WriterState:
        return _writer(
            await self._writers.open_writer(request.writer, request.run, request.coordinator, dict(request.layout))
        )

    @reporting
    async def QueryWriter(self, request: pipeline_pb2.WriterName, context: Any) -> pipeline_pb2.WriterState:
        return _writer(await self._writers.query_writer(request.writer))

    @reporting
    async def Decide(self, request: pipeline_pb2.DecideRequest, context: Any) -> pipeline_pb2.WriterState:
        keys = {each.key: dict(each.chunks) for each in request.keys}
        return _writer(await self._writers.decide(request.writer, request.run, request.batch, keys, request.content))

    @reporting
    async def Finish(self, request: pipeline_pb2.FinishRequest, context: Any) -> pipeline_pb2.WriterState:
        return _writer(await self._writers.finish(request.writer, request.batch))

    @reporting
    async def Expire(self, request: pipeline_pb2.StagedKeys, context: Any) -> pipeline_pb2.ExpireReply:
        decided = await self._writers.give_up(request.writer, request.batch, request.keys)
        return pipeline_pb2.ExpireReply(decided=_keys(decided))

    @reporting
    async def Publish(self, request: pipeline_pb2.PublishRequest, context: Any) -> pipeline_pb2.PublishReply:
        records, duplicate = await self._staging.publish(request.writer, request.batch, dict(request.chunks))
        return pipeline_pb2.PublishReply(records=records, duplicate=duplicate)

    @reporting
    async def Drop(self, request: pipeline_pb2.StagedKeys, context: Any) -> common_pb2.Empty:
        await self._staging.drop(request.writer, request.batch, request.keys)
        return common_pb2.Empty()

    @reporting
    async def QueryLanes(self, request: pipeline_pb2.LanesRequest, context: Any) -> pipeline_pb2.LanesReply:
        self._writers.check_master()
        known = (self._producers.last_sequence(each.producer_id, each.topic, each.lane) for each in request.lanes)
        return pipeline_pb2.LanesReply(last_sequences=[-1 if last is None else last for last in known])


class PositionsService(PositionsServicer):
    """``penstock.v1.Positions``."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    @reporting
    async def QueryTopic(
        self, request: pipeline_pb2.TopicPositionsRequest, context: Any
    ) -> pipeline_pb2.TopicPositions:
        return self._positions.query_topic(request)

    @reporting
    async def SetArchiveWatermark(
        self, request: pipeline_pb2.ArchiveWatermark, context: Any
    ) -> pipeline_pb2.ArchiveWatermark:
        held = await self._positions.set_watermark(request)
        return _watermark(held) if held else pipeline_pb2.ArchiveWatermark(name=request.name, offset=REMOVED)

    @reporting
    async def ListArchiveWatermarks(self, request: common_pb2.Empty, context: Any) -> pipeline_pb2.ArchiveWatermarks:
        return pipeline_pb2.ArchiveWatermarks(watermarks=[_watermark(each) for each in self._positions.watermarks()])


def _writer(writer: Writer | None) -> pipeline_pb2.WriterState:
    if writer is None or not writer.run:
        return pipeline_pb2.WriterState(exists=False, decided_batch=-1, finished=True)
    return pipeline_pb2.WriterState(
        exists=True,
        run=writer.run,
        epoch=writer.epoch,
        decided_batch=writer.decided,
        finished=writer.finished,
        keys=_keys(writer.keys),
        coordinator=writer.coordinator,
        layout=dict(writer.layout),
        content=writer.content,
    )


def _keys(keys: Keys) -> list[pipeline_pb2.StagedKey]:
    return [pipeline_pb2.StagedKey(key=key, chunks=dict(shards)) for key, shards in keys.items()]


def _watermark(mark: Watermark) -> pipeline_pb2.ArchiveWatermark:
    return pipeline_pb2.ArchiveWatermark(name=mark.name, offset=mark.offset, updated_timestamp_ms=mark.updated_ms)
