"""A topic's positions in one call, and the archive's watermark, at a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.proto.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from penstock.proto.wire import broker_pb2, common_pb2, pipeline_pb2
from penstock.proto.wire.pipeline_pb2_grpc import PositionsStub
from tests.support.broker.running_broker import Caller, running
from tests.support.waiting import eventually


async def ask(caller: Caller, method: str, request: Any) -> Any:
    return await caller.call(method, request, PositionsStub)


def mark(offset: int, *, force: bool = False) -> pipeline_pb2.ArchiveWatermark:
    return pipeline_pb2.ArchiveWatermark(name="lake", offset=offset, force=force)


def test_every_queue_of_a_topic_is_told_in_one_call(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (broker, caller):
            await caller.create_topic(queues=3)
            for number in range(200):
                await caller.append([b"x" * 100], queue_id=1)
                if number == 0:
                    await asyncio.sleep(0.01)
            receipt = await caller.append([b"y" * 100], queue_id=1)
            await eventually(lambda: broker.core.store.reader.queue_range("orders", 1)[1] == 201)
            request = pipeline_pb2.TopicPositionsRequest(
                topic="orders", timestamp_ms=receipt.store_timestamp_ms, with_timestamp=True
            )
            answer = await ask(caller, "QueryTopic", request)
            found = {queue.queue_id: queue for queue in answer.queues}
            assert answer.is_master
            assert sorted(found) == [0, 1, 2]
            assert (found[0].min_offset, found[0].max_offset, found[0].mean_record_bytes) == (0, 0, 0)
            assert (found[1].min_offset, found[1].max_offset) == (0, 201)
            assert answer.log_offset == broker.core.store.dispatched_offset > 200 * 100
            assert 190 <= found[1].mean_record_bytes <= 220
            assert found[1].time_matched
            assert 0 < found[1].time_offset <= 200
            request.timestamp_ms += 60_000
            late = (await ask(caller, "QueryTopic", request)).queues[1]
            assert (late.time_matched, late.time_offset) == (False, 201)
            fewer = common_pb2.TopicConfig(topic="orders", read_queues=1, write_queues=1)
            for config in (common_pb2.TopicConfig(topic="orders", read_queues=3, write_queues=1), fewer):
                await caller.call("CreateTopic", broker_pb2.CreateTopicRequest(config=config, update=True))
            answer = await ask(caller, "QueryTopic", request)
            assert [queue.queue_id for queue in answer.queues] == [0]
            assert [(each.queue_id, each.min_offset, each.max_offset) for each in answer.removed] == [(1, 0, 201)]
            with pytest.raises(TopicNotFound):
                await ask(caller, "QueryTopic", pipeline_pb2.TopicPositionsRequest(topic="missing"))

    asyncio.run(check())


def test_a_watermark_goes_forward_only_and_survives_a_restart(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (broker, caller):
            await caller.create_topic()
            await caller.append([b"x"] * 10)
            await eventually(lambda: broker.core.store.dispatched_offset == broker.core.store.end_offset)
            assert (await ask(caller, "SetArchiveWatermark", mark(500))).offset == 500
            with pytest.raises(InvalidArgument, match="only force moves it back"):
                await ask(caller, "SetArchiveWatermark", mark(400))
            with pytest.raises(OffsetOutOfRange):
                await ask(caller, "SetArchiveWatermark", mark(1 << 40))
            assert (await ask(caller, "SetArchiveWatermark", mark(400, force=True))).offset == 400
        async with running(tmp_path) as (_, caller):
            listed = await ask(caller, "ListArchiveWatermarks", common_pb2.Empty())
            assert [(each.name, each.offset) for each in listed.watermarks] == [("lake", 400)]
            assert (await ask(caller, "SetArchiveWatermark", mark(-1))).offset == -1
            assert not (await ask(caller, "ListArchiveWatermarks", common_pb2.Empty())).watermarks

    asyncio.run(check())
