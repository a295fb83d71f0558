"""Brokers with a transient store pool: what they have acknowledged survives them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from penstock.broker.broker import FEATURES, serving
from penstock.broker.consume.consume import Consume
from penstock.broker.core.dispatch import Dispatcher
from penstock.broker.core.events import LogEvents
from penstock.broker.group.making import RoleMaker
from penstock.broker.opening import open_store
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.broker_pb2 import FetchReply
from penstock.runtime.clock import SystemClock
from tests.support.broker.running_broker import broker_process, calling, running, small_config
from tests.support.broker.stores import HOST
from tests.support.record.encoding import encode_messages
from tests.support.waiting import eventually

POOL = {
    "transientStorePoolEnable": "true",
    "transientStorePoolSize": "2",
    "commitIntervalCommitLog": "60000",
    "commitCommitLogThoroughInterval": "60000",
}
BODY = bytes(50_000)
BATCHES = 60  # three log files


def test_what_was_acknowledged_survives_kill_minus_nine(tmp_path: Path) -> None:
    async def produce(address: str) -> None:
        async with calling(address) as caller:
            await caller.create_topic()
            for number in range(BATCHES):
                assert (await caller.append([b"%04d" % number + BODY], no_wait=number % 3 == 0)).status == 0
            offsets = [common_pb2.TopicOffsets(topic="orders", queue_ids=[0], offsets=[7])]
            await caller.call("CommitOffsets", broker_pb2.CommitOffsetsRequest(group="billing", offsets=offsets))

    async def check(address: str) -> None:
        async with calling(address) as caller:
            committed = await caller.call("QueryOffsets", broker_pb2.QueryOffsetsRequest(group="billing"))
            assert list(committed.offsets[0].offsets) == [7]
            for number in range(BATCHES):
                reply, data = await caller.fetch((0, number), max_bytes=1)
                assert reply.results[0].status == FetchReply.FOUND
                assert b"%04d" % number in data

    with broker_process(tmp_path, **POOL) as broker:
        asyncio.run(produce(broker.wait_ready()))
        broker.end(signal.SIGKILL)
    with broker_process(tmp_path, **POOL) as broker:
        asyncio.run(check(broker.wait_ready()))


def test_messages_are_read_at_once_and_acknowledged_by_slaves(tmp_path: Path) -> None:
    async def check() -> None:
        master_config = small_config(tmp_path / "master", brokerRole="SYNC_MASTER", **POOL)
        async with serving(master_config) as master, calling(master.address) as to_master:
            slave_settings = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": master.address}
            async with running(tmp_path / "slave", **slave_settings, **POOL) as (slave, to_slave):
                await eventually(lambda: master.core.role.can_acknowledge())
                await to_master.create_topic()
                waiting = asyncio.create_task(to_master.fetch((0, 0), max_wait_ms=10_000))
                await eventually(lambda: len(master.features[Consume].fetch.waiters))
                for _ in range(BATCHES):
                    receipt = await to_master.append([BODY])
                    assert receipt.status == broker_pb2.SEND_OK
                    assert slave.core.store.end_offset > receipt.physical_offset
                assert (await waiting)[0].results[0].count == 1
                await eventually(lambda: slave.core.store.reader.queue_range("orders", 0) == (0, BATCHES))
                assert (await to_slave.fetch((0, BATCHES - 1)))[0].results[0].count == 1

    asyncio.run(check())


def test_a_master_that_becomes_a_slave_commits_what_it_has(tmp_path: Path) -> None:
    config = small_config(tmp_path, **POOL)
    with open_store(config, FEATURES) as opened:
        store = opened.store
        end = store.append("orders", encode_messages("orders", [b"x"], None, 0, born_host=HOST), queues=1).end
        assert store.end_offset == 0
        dispatcher = Dispatcher(store, opened.tables)
        RoleMaker(config, opened, LogEvents(store, dispatcher), SystemClock()).make_slave()
        assert store.end_offset == end
        store.close()
