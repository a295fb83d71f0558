"""Exactly-once writers: their wire, and what they keep of the log. See :mod:`.staging`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.proto.data_frames import Method
from penstock.proto.errors import StaleProducer
from penstock.proto.wire import common_pb2, pipeline_pb2
from penstock.runtime.data.port import Converse

from ...core.core import Core
from ...core.data_calls import PlacingCalls
from ...core.feature import Feature, Hold
from ...core.journal import Journal
from ...core.metrics import Families
from ...core.wire import Service, check_count, in_turns, service
from .coordinators import Coordinators
from .staging import Staging
from .staging_table import Keys, StagingTable, Writer
from .writers import KEYS_MAX, SHARDS_MAX, Writers


class ExactlyOnce(Feature):
    """Staged writes, and the writers' decisions."""

    tables = (StagingTable,)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        config = core.config
        self._table = core.tables[StagingTable]
        self.writers = Writers(core)
        coordinators = Coordinators(config.nameservers.addresses, config.security.outgoing())
        self.staging = Staging(core, self.writers, coordinators.ask)
        self.stages = PlacingCalls(Method.STAGE, self.staging)

    def services(self) -> Iterable[Service]:
        yield service(
            pipeline_pb2.DESCRIPTOR.services_by_name["Staging"],
            OpenWriter=self._open_writer,
            QueryWriter=self._query_writer,
            Decide=self._decide,
            Finish=self._finish,
            Expire=self._expire,
            Publish=self._publish,
            Drop=self._drop,
            QueryLanes=self._query_lanes,
        )

    def data_methods(self) -> Mapping[int, Converse]:
        return {Method.STAGE: self.stages}

    def admit(self, writer: str, run: str) -> None:
        held = self._table.writers.get(writer)
        if held is not None and run in held.fenced and run != held.run:
            raise StaleProducer(
                f"writer {writer}: run {run} is fenced: run {held.run} has taken over", epoch=held.epoch
            )

    def holds(self) -> Iterable[Hold]:
        first = self._table.first_position()
        if first is not None:
            position, writer = first
            yield Hold(f"data of writer {writer} is staged and not published", position)

    def describe(self, families: Families) -> None:
        staging, staged = self.staging, self._table.staged.values()
        families.gauge("penstock_staged_chunks", "Chunks that wait for a decision", sum(len(s.chunks) for s in staged))
        records = sum(chunk.count for s in staged for chunk in s.chunks.values())
        families.gauge("penstock_staged_records", "Records that wait for a decision", records)
        families.counter("penstock_staged_published", "Records published", staging.records_published)
        families.counter("penstock_staged_dropped", "Records dropped undecided", staging.records_dropped)

    def on_role(self, journal: Journal | None) -> None:
        self.writers.on_role()

    async def run(self) -> None:
        await self.staging.run()

    async def stop(self) -> None:
        await self.stages.close()

    async def _open_writer(self, request: pipeline_pb2.OpenWriterRequest) -> pipeline_pb2.WriterState:
        asked = request.writer, request.run, request.coordinator, request.layout
        return await _state(await self.writers.open_writer(*asked))

    async def _query_writer(self, request: pipeline_pb2.WriterName) -> pipeline_pb2.WriterState:
        return await _state(await self.writers.query_writer(request.writer))

    async def _decide(self, request: pipeline_pb2.DecideRequest) -> pipeline_pb2.WriterState:
        check_count("keys", len(request.keys), KEYS_MAX)
        keys: dict[str, dict[str, int]] = {}
        async for each in in_turns(request.keys):
            check_count(f"broker groups of key {each.key!r:.80}", len(each.chunks), SHARDS_MAX)
            keys[each.key] = dict(each.chunks)
        content = request.content
        return await _state(await self.writers.decide(request.writer, request.run, request.batch, keys, content))

    async def _finish(self, request: pipeline_pb2.FinishRequest) -> pipeline_pb2.WriterState:
        return await _state(await self.writers.finish(request.writer, request.batch))

    async def _expire(self, request: pipeline_pb2.StagedKeys) -> pipeline_pb2.ExpireReply:
        decided = await self.writers.give_up(request.writer, request.batch, request.keys)
        reply = pipeline_pb2.ExpireReply()
        await _add_keys(reply.decided, decided)
        return reply

    async def _publish(self, request: pipeline_pb2.PublishRequest) -> pipeline_pb2.PublishReply:
        check_count("keys", len(request.chunks), KEYS_MAX)
        chunks = {key: count async for key, count in in_turns(request.chunks.items())}
        records, duplicate = await self.staging.publish(request.writer, request.batch, chunks)
        return pipeline_pb2.PublishReply(records=records, duplicate=duplicate)

    async def _drop(self, request: pipeline_pb2.StagedKeys) -> common_pb2.Empty:
        check_count("keys", len(request.keys), KEYS_MAX)
        await self.staging.drop(request.writer, request.batch, request.keys)
        return common_pb2.Empty()

    async def _query_lanes(self, request: pipeline_pb2.LanesRequest) -> pipeline_pb2.LanesReply:
        self.core.role.check_master()
        producers = self.core.tables.producers
        check_count("lanes", len(request.lanes), KEYS_MAX)
        lanes = ((each.producer_id, each.topic, each.lane) async for each in in_turns(request.lanes))
        known = [producers.last_sequence(*lane) async for lane in lanes]
        return pipeline_pb2.LanesReply(last_sequences=[-1 if last is None else last for last in known])


async def _state(writer: Writer | None) -> pipeline_pb2.WriterState:
    if writer is None or not writer.run:
        return pipeline_pb2.WriterState(exists=False, decided_batch=-1, finished=True)
    state = pipeline_pb2.WriterState(
        exists=True,
        run=writer.run,
        epoch=writer.epoch,
        decided_batch=writer.decided,
        finished=writer.finished,
        coordinator=writer.coordinator,
        layout=dict(writer.layout),
        content=writer.content,
    )
    await _add_keys(state.keys, writer.keys)
    return state


async def _add_keys(wire: Any, keys: Keys) -> None:
    async for key, shards in in_turns(keys.items()):
        wire.add(key=key, chunks=shards)
