from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from penstock.broker.admin.administration import Administration
from penstock.broker.broker import FEATURES, serving
from penstock.broker.consume.consume import Consume
from penstock.broker.consume.fetch import WAIT_MS_MAX
from penstock.broker.group.group import BrokerGroup
from penstock.broker.opening import open_store
from penstock.broker.process import serve_until_signalled
from penstock.proto.errors import ConfigError, NotCurrent, NotMaster, StoreLocked, SyncFailed, WrongCluster, WrongStore
from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2
from penstock.proto.wire.broker_pb2 import FetchReply
from tests.support.broker.running_broker import (
    broker_process,
    calling,
    running,
    small_config,
    sync_status,
)
from tests.support.cluster.nameserver import connected, nameserver
from tests.support.waiting import eventually, wait_until

PRODUCER = (0xFEED, 1, 0, 1)


def test_messages_topics_offsets_and_duplicates_survive_a_restart(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (_, caller):
            await caller.create_topic()
            first = await caller.append([b"a", b"b"], queue_id=1, producer=PRODUCER)
            reply, data = await caller.fetch((1, 0), max_wait_ms=5000)
            assert (reply.results[0].count, len(data) > 0) == (2, True)
            offsets = [common_pb2.TopicOffsets(topic="orders", queue_ids=[1], offsets=[1])]
            await caller.call("CommitOffsets", broker_pb2.CommitOffsetsRequest(group="billing", offsets=offsets))
        async with running(tmp_path) as (_, caller):
            again = await caller.append([b"a", b"b"], queue_id=1, producer=PRODUCER)
            assert (again.duplicate, again.physical_offset) == (True, first.physical_offset)
            committed = await caller.call("QueryOffsets", broker_pb2.QueryOffsetsRequest(group="billing"))
            assert list(committed.offsets[0].offsets) == [1]
            assert list((await caller.append([b"c"], queue_id=1)).queue_offsets) == [2]
            reply, _ = await caller.fetch((1, 0), max_wait_ms=5000)
            assert (await caller.fetch((1, 2), max_wait_ms=5000))[0].results[0].count == 1

    asyncio.run(check())


def test_tables_are_rebuilt_from_the_log_alone(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (_, caller):
            await caller.create_topic()
            await caller.append(producer=PRODUCER)
        for path in (tmp_path / "store" / "config").iterdir():
            path.unlink()
        async with running(tmp_path) as (_, caller):
            assert (await caller.append(producer=PRODUCER)).duplicate

    asyncio.run(check())


def test_queues_of_a_deleted_topic_do_not_come_back_when_all_are_built_again(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (_, caller):
            for topic in ("gone", "again", "kept"):
                await caller.create_topic(topic)
                for queue_id in (0, 1):
                    await caller.append([b"old", b"old"], topic=topic, queue_id=queue_id)
            for topic in ("gone", "again"):
                await caller.call("DeleteTopic", broker_pb2.TopicName(topic=topic))
        async with running(tmp_path) as (_, caller):  # the snapshot of the stop knows of no deletion any more
            await caller.create_topic("again")
            await caller.append([b"new"], topic="again", queue_id=1)

    asyncio.run(check())
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    with open_store(small_config(tmp_path), FEATURES) as opened:
        store = opened.store
        assert store.recovery.queues_rebuilt
        assert "gone" not in store.queues()
        assert (store.reader.queue_range("again", 0), store.reader.queue_range("again", 1)) == ((0, 0), (0, 1))
        assert (store.reader.queue_range("kept", 0), store.reader.queue_range("kept", 1)) == ((0, 2), (0, 2))
        store.close()


def test_a_waiting_fetch_is_woken_by_an_append(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (broker, caller):
            await caller.create_topic()
            waiting = asyncio.create_task(caller.fetch((0, 0), max_wait_ms=WAIT_MS_MAX))
            await eventually(lambda: len(broker.features[Consume].fetch.waiters))
            await caller.append()
            async with asyncio.timeout(WAIT_MS_MAX / 2000):  # it would end by itself only behind that
                assert (await waiting)[0].results[0].count == 1

    asyncio.run(check())


def test_a_consumer_that_disconnects_leaves_no_waiter(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (broker, caller):
            await caller.create_topic()
            async with calling(broker.address) as other:
                waiting = asyncio.create_task(other.fetch((0, 0), max_wait_ms=10_000))
                await eventually(lambda: len(broker.features[Consume].fetch.waiters))
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await eventually(lambda: not len(broker.features[Consume].fetch.waiters))

    asyncio.run(check())


def test_sync_flush_acknowledges_what_is_on_disk(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as (broker, caller):
            await caller.create_topic()
            receipt = await caller.append()
            assert receipt.status == broker_pb2.SEND_OK
            assert broker.core.store.flushed_offset > receipt.physical_offset
            assert (await caller.fetch((0, 0), max_wait_ms=5000))[0].results[0].count == 1

    asyncio.run(check())


def test_a_slave_has_what_its_master_acknowledged_serves_reads_and_keeps_commits(tmp_path: Path) -> None:
    async def check() -> None:
        master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
        async with serving(small_config(master_dir, brokerRole="SYNC_MASTER")) as master:
            port = master.config.identity.listen_port
            slave_settings = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": master.address}
            async with (
                serving(small_config(slave_dir, **slave_settings)) as slave,
                calling(master.address) as to_master,
                calling(slave.address) as to_slave,
            ):
                await eventually(lambda: master.core.role.can_acknowledge())
                await to_master.create_topic()
                receipt = await to_master.append([b"a", b"b"])
                assert receipt.status == broker_pb2.SEND_OK
                assert slave.core.store.end_offset == master.core.store.end_offset
                await eventually(lambda: slave.core.store.reader.queue_range("orders", 0) == (0, 2))
                reply, _ = await to_slave.fetch((0, 0), max_wait_ms=5000)
                assert (reply.results[0].count, reply.suggested_broker_id) == (2, 0)
                with pytest.raises(NotMaster, match=master.address):
                    await to_slave.append()
                with pytest.raises(NotMaster):
                    await to_slave.create_topic("other")
                (replica,) = (await to_master.status()).replicas
                assert (replica.broker_id, replica.in_sync, replica.lag_bytes) == (1, True, 0)
                assert (await to_slave.status()).role == common_pb2.SLAVE
        offsets = [common_pb2.TopicOffsets(topic="orders", queue_ids=[0], offsets=[2])]
        commit = broker_pb2.CommitOffsetsRequest(group="billing", offsets=offsets)
        query = broker_pb2.QueryOffsetsRequest(
            group="billing", queues=[common_pb2.TopicQueues(topic="orders", queue_ids=[0])]
        )
        async with running(slave_dir, **slave_settings) as (slave, to_slave):
            reply, _ = await to_slave.fetch((0, 0), max_wait_ms=5000)
            assert (reply.results[0].count, reply.suggested_broker_id) == (2, 1)
            await to_slave.call("CommitOffsets", commit)
            with pytest.raises(NotCurrent):  # it has just begun, and may lack what was acknowledged
                await to_slave.call("QueryOffsets", query)
            async with serving(small_config(master_dir, brokerRole="SYNC_MASTER", listenPort=port)) as master:
                await eventually(lambda: master.core.tables.offsets.get("billing", "orders", 0) == 2)
                await eventually(lambda: slave.core.tables.offsets.get("billing", "orders", 0) == 2)

    asyncio.run(check())


@pytest.mark.parametrize(("settings", "looked_s"), [({}, 200e-6), ({"busyPollMicros": 0}, 0.0)])
def test_the_data_port_looks_for_the_next_request_for_as_long_as_it_is_told(
    tmp_path: Path, settings: dict[str, int], looked_s: float
) -> None:
    async def check() -> None:
        async with serving(small_config(tmp_path, **settings)) as broker:
            assert broker.data.busy_poll_s == looked_s

    asyncio.run(check())


def test_rocketmqs_tables_are_taken_over_into_the_log(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    topic = {"topicName": "legacy", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "order": True}
    (config / "topics.json").write_text(json.dumps({"dataVersion": {}, "topicConfigTable": {"legacy": topic}}))
    (config / "consumerOffset.json").write_text('{"offsetTable":{"legacy@old":{0:0,1:0\n}}}')

    async def check() -> None:
        async with running(tmp_path) as (_, caller):
            await caller.append(topic="legacy")
        for path in config.iterdir():
            path.unlink()
        async with running(tmp_path) as (broker, caller):
            taken = broker.core.tables.topics.get("legacy")
            assert taken is not None
            assert taken.extra == {"order": True}
            assert broker.core.tables.offsets.row("old", "legacy") == {0: 0, 1: 0}
            assert (await caller.fetch((0, 0), topic="legacy", max_wait_ms=5000))[0].results[
                0
            ].status == FetchReply.FOUND

    asyncio.run(check())


def test_a_store_is_opened_once_and_only_by_its_broker(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path):
            with pytest.raises(StoreLocked):
                async with serving(small_config(tmp_path)):
                    pass
        for setting in ({"brokerName": "broker-b"}, {"brokerClusterName": "other"}):
            with pytest.raises(WrongStore, match="main/broker-a"):
                async with serving(small_config(tmp_path, **setting)):
                    pass

    asyncio.run(check())


def test_a_failing_disk_ends_the_broker_with_the_stores_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (broker, caller):
            await caller.create_topic()
            assert broker.core.store.on_fatal is not None
            await asyncio.to_thread(broker.core.store.on_fatal, SyncFailed("the disk syncs no more"))
            await asyncio.sleep(30)

    with pytest.raises(SyncFailed, match="no more"):
        asyncio.run(check())


def test_a_stop_that_the_disk_holds_up_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.broker.broker.STOP_LATE_S", 0.01)

    async def check() -> None:
        async with running(tmp_path) as (broker, _):
            close = broker.core.store.close

            def waiting() -> None:
                wait_until(lambda: f"has not stopped yet seconds=0 store={tmp_path}" in caplog.text)
                close()

            monkeypatch.setattr(broker.core.store, "close", waiting)

    asyncio.run(check())


def test_a_port_in_use_ends_the_start_before_the_store_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = small_config(tmp_path, listenPort=taken.getsockname()[1])

        async def check() -> None:
            with pytest.raises(ConfigError, match="listenPort"):
                async with serving(config):
                    pass

        asyncio.run(check())
    assert not (tmp_path / "store").exists()


def test_a_broker_process_is_ready_after_a_kill_and_stops_on_sigterm(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        address = broker.wait_ready()

        async def use() -> int:
            async with calling(address) as caller:
                await caller.create_topic()
                return (await caller.append([b"kept"] * 100)).physical_offset

        asyncio.run(use())
        broker.end(signal.SIGKILL)
    with broker_process(tmp_path) as broker:
        address = broker.wait_ready()

        async def read() -> int:
            async with calling(address) as caller:
                return (await caller.fetch((0, 0), max_wait_ms=5000))[0].results[0].count

        assert asyncio.run(read()) == 100
        assert sync_status(address).role == common_pb2.MASTER
        assert broker.end() == 0
        assert "Traceback" not in broker.log()
        assert "broker stopped" in broker.log()


def test_topics_reach_the_nameserver_and_a_slave_finds_its_master_there(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            nameserver(tmp_path) as namesrv,
            connected(namesrv) as stub,
            running(tmp_path / "a", namesrvAddr=namesrv) as (master, to_master),
        ):
            await eventually(lambda: master.features[BrokerGroup].registration.registered)
            await to_master.create_topic()

            async def route() -> nameserver_pb2.TopicRoute:
                update = await stub.QueryRoute(nameserver_pb2.RouteQuery(topics=["orders"]))
                found: nameserver_pb2.TopicRoute = update.routes[0]
                return found

            while not (await route()).exists:  # noqa: ASYNC110  asks another server
                await asyncio.sleep(0.01)
            assert (await route()).queues[0].write_queues == 4
            slave = {"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": namesrv}
            async with running(tmp_path / "b", **slave) as (follower, _):
                await to_master.append()
                await eventually(lambda: follower.core.store.reader.queue_range("orders", 0) == (0, 1))
                assert follower.core.role.master_address == master.address

    asyncio.run(check())


def test_metrics_of_a_running_broker_are_served_on_their_own_port(tmp_path: Path) -> None:
    async def check() -> None:
        settings = {"metricsExporterType": "PROM", "metricsPromExporterHost": "127.0.0.1", "metricsPromExporterPort": 0}
        async with running(tmp_path, **settings) as (broker, caller):
            await caller.create_topic()
            await caller.append([b"x"] * 5)
            assert broker.features[Administration].metrics is not None
            url = f"http://127.0.0.1:{broker.features[Administration].metrics.port}/metrics"

            def scrape() -> str:
                with urllib.request.urlopen(url, timeout=60) as answer:
                    text: str = answer.read().decode()
                return text

            text = await asyncio.to_thread(scrape)
            assert (
                'rocketmq_messages_in_total{cluster="main",node_id="broker-a-0",node_type="broker",topic="orders"} 5'
                in text
            )

    asyncio.run(check())


def test_a_second_broker_of_the_same_name_and_id_ends_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.group.group.REFUSED_S", 0.05)

    async def check() -> None:
        async with nameserver(tmp_path) as namesrv, running(tmp_path / "a", namesrvAddr=namesrv) as (first, _):
            await eventually(lambda: first.features[BrokerGroup].registration.registered)
            with pytest.raises(WrongCluster, match="broker 0 of broker-a is alive"):
                async with running(tmp_path / "b", namesrvAddr=namesrv):
                    await asyncio.sleep(30)
            assert first.features[BrokerGroup].registration.registered

    asyncio.run(check())


def test_a_twin_never_says_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.broker.group.group.REFUSED_S", 0.5)
    caplog.set_level("INFO")

    async def check() -> None:
        async with nameserver(tmp_path) as namesrv, running(tmp_path / "a", namesrvAddr=namesrv) as (first, _):
            await first.features[BrokerGroup].registration.settled()
            with pytest.raises(WrongCluster):
                await serve_until_signalled(small_config(tmp_path / "b", namesrvAddr=namesrv), time.monotonic())

    asyncio.run(check())
    assert "registration refused" in caplog.text
    assert "broker ready" not in caplog.text


def test_a_broker_is_ready_without_a_nameserver_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def check() -> None:
        config = small_config(tmp_path / "b", namesrvAddr="127.0.0.1:1")
        serving_it = asyncio.create_task(serve_until_signalled(config, time.monotonic()))
        await eventually(lambda: "broker ready" in caplog.text)
        serving_it.cancel()
        await asyncio.gather(serving_it, return_exceptions=True)

    asyncio.run(check())
    assert "nameserver session lost" in caplog.text


def test_a_master_with_a_slave_stops_without_waiting_for_the_grace_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.broker.STOP_GRACE_S", 3600)

    async def check() -> None:
        synchronous = running(tmp_path / "a", brokerRole="SYNC_MASTER")
        async with contextlib.AsyncExitStack() as slave, synchronous as (master, to_master):
            follow = {"brokerId": 1, "brokerRole": "SLAVE", "haMasterAddress": master.address}
            await slave.enter_async_context(running(tmp_path / "b", **follow))
            await eventually(master.core.role.can_acknowledge)
            await to_master.create_topic()
            assert (await to_master.append([b"x"] * 10)).status == broker_pb2.SEND_OK

    asyncio.run(check())
