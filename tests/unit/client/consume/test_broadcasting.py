"""Broadcasting members as brokers see them: shown, refused, moved by resets, and outside of the group's sharing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.client import Admin, ConsumeResult, MessageView, PushConsumer
from penstock.client.cluster.directory import Directory
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.consume.offsets import FileOffsets
from penstock.client.message import MessageQueue
from penstock.proto.errors import Forbidden, InvalidArgument, NameserverUnavailable
from tests.support.client.push_consumers import Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def broadcasting(cluster: RunningCluster, seen: Seen, directory: Path, client_id: str = "x") -> PushConsumer:
    config = ConsumerConfig(commit_interval_ms=30, offsets_directory=directory)
    return consumer(cluster, seen, model="broadcasting", client_id=client_id, config=config)


def kept(directory: Path, client_id: str = "x") -> list[int]:
    """The offsets in a member's file."""
    path = directory / client_id / "g.json"
    return [row[3] for row in json.loads(path.read_text())["offsets"]] if path.exists() else []


def wait_members(cluster: RunningCluster, *client_ids: str, broker: str = "broker-a") -> None:
    wait_until(lambda: cluster.brokers[broker].members("g") == list(client_ids), what=f"members {client_ids}")


def test_members_are_shown_and_the_group_has_no_lag(
    cluster: RunningCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put("orders", numbered(5), 0)
    with Admin(cluster.namesrv) as admin, broadcasting(cluster, Seen(), tmp_path):
        wait_members(cluster, "x")
        (member,) = admin.group("g").members
        assert (member.broadcasting, member.subscriptions, member.queues) == (True, {"orders": "*"}, [])
        assert admin.group_lag("g").lag == 0
        assert main(["group", "show", "g", "--namesrv", cluster.namesrv]) == 0
        assert "all" in capsys.readouterr().out
        with pytest.raises(InvalidArgument, match="1 members: stop them first"):
            admin.delete_group("g")


def test_a_reset_reaches_every_member_and_is_kept_in_its_file(cluster: RunningCluster, tmp_path: Path) -> None:
    cluster.put("orders", numbered(5), 0)
    seen = {name: Seen() for name in "xy"}
    made = [broadcasting(cluster, seen[name], tmp_path, name) for name in seen]
    with Admin(cluster.namesrv) as admin, made[0], made[1]:
        wait_until(lambda: [len(each) for each in seen.values()] == [5, 5], what="everything at both")
        wait_until(lambda: kept(tmp_path, "x") == kept(tmp_path, "y") == [5, 0], what="both files")
        wait_members(cluster, "x", "y")
        admin.reset_offset("g", "orders", offset=3, queues=[("broker-a", 0)])
        wait_until(lambda: [len(each) for each in seen.values()] == [7, 7], what="the last two again")
        assert sorted(seen["x"].bodies()[5:]) == [b"3", b"4"]
        assert cluster.committed("g", "orders", 0) == -1, "their offsets are theirs"
    again = Seen()
    assert kept(tmp_path) == [5, 0]
    with Admin(cluster.namesrv) as admin, broadcasting(cluster, again, tmp_path):
        wait_members(cluster, "x")
        admin.reset_offset("g", "orders", "first")
        wait_until(lambda: sorted(again.bodies()) == numbered(5), what="all of it again")


def test_a_start_that_failed_may_be_made_again(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*args: object) -> None:
        raise NameserverUnavailable("no nameserver answers")

    cluster.put("orders", numbered(5), 0)
    seen = Seen()
    member = broadcasting(cluster, seen, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Directory, "topic", silent)
        for _ in range(2):
            with pytest.raises(NameserverUnavailable):
                member.start()
    with member:
        wait_until(lambda: sorted(seen.bodies()) == numbered(5), what="everything")


def test_a_save_that_failed_is_made_again_and_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MessageQueue("orders", "broker-a", 0)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    offsets = FileOffsets(tmp_path, "x", "g")
    offsets.save({queue: 5}, 1.0, force=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            offsets.save({queue: 100}, 1.0, force=False)
    assert offsets.load(queue) == (5, 0)
    offsets.save({queue: 100}, 1.0, force=False)
    assert kept(tmp_path) == [100]
    offsets.close()


def test_what_two_threads_save_at_once_is_all_in_the_file(tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path, "x", "g")

    def save(queue_id: int) -> None:
        for offset in range(1, 51):
            offsets.save({MessageQueue("orders", "broker-a", queue_id): offset}, 1.0, force=False)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(save, range(4)))
    offsets.close()
    assert kept(tmp_path) == [50] * 4


def test_a_listener_that_hangs_in_another_try_fails_that_too_and_keeps_its_thread_alone(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    cluster.put("orders", numbered(3), 0)
    release = threading.Event()
    tries: list[int] = []

    def then(message: MessageView) -> ConsumeResult | None:
        if message.body == b"1":
            tries.append(message.reconsume_times)
            if message.reconsume_times < 3:
                assert message.reconsume_times == 0 or release.wait(60)
                return ConsumeResult.RETRY_LATER
        return None

    config = ConsumerConfig(commit_interval_ms=30, offsets_directory=tmp_path, retry_delays_ms=(20,))
    options = {"client_id": "x", "consume_threads": 1, "consume_timeout_s": 0.4, "config": config}
    made = consumer(cluster, Seen(then), model="broadcasting", **options)
    with made:
        wait_until(lambda: tries == [0, 1, 2, 3], 30, "all tries")
        cluster.put("orders", [b"more"], 0)
        wait_until(lambda: sum(kept(tmp_path)) == 4, what="the commit")
        assert made.statistics().failed == 3
        release.set()
        late = made._workers._threads._late
        wait_until(lambda: not any(thread.is_alive() for thread in late), what="the late threads' end")
    assert tries == [0, 1, 2, 3]


def test_members_of_both_kinds_share_a_name_and_no_queue(cluster: RunningCluster, tmp_path: Path) -> None:
    sharing, everything = Seen(), Seen()
    with (
        Admin(cluster.namesrv) as admin,
        consumer(cluster, sharing, client_id="s"),
        broadcasting(cluster, everything, tmp_path),
    ):
        wait_members(cluster, "s", "x")
        for queue_id in range(2):
            cluster.put("orders", numbered(5, 10 * queue_id), queue_id)
        wait_until(lambda: len(sharing) == len(everything) == 10, what="everything at both")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="the commit of the one that shares")
        admin.reset_offset("g", "orders", "first", queues=[("broker-a", 0)])
        wait_until(lambda: len(sharing) == len(everything) == 15, what="the reset at both")
    with Admin(cluster.namesrv) as admin, broadcasting(cluster, Seen(), tmp_path):
        wait_members(cluster, "x")  # the other kind is away: what it will go on from is kept
        admin.reset_offset("g", "orders", offset=2)
        assert [cluster.committed("g", "orders", queue_id) for queue_id in range(2)] == [2, 2]


def test_a_group_that_may_not_broadcast_ends_such_a_consumer(cluster: RunningCluster, tmp_path: Path) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_group("g", broadcast_enable=False)
    made = broadcasting(cluster, Seen(), tmp_path)
    with made, pytest.raises(Forbidden, match="group g may not broadcast: its consumeBroadcastEnable is false"):
        made.wait(20)


def test_members_are_known_again_and_hear_of_resets_after_a_broker_has_died(tmp_path: Path) -> None:
    with RunningCluster(shards=2, topics={"orders": 1}) as cluster, Admin(cluster.namesrv) as admin:
        for broker in cluster.brokers.values():
            broker.append("orders", numbered(3))
        seen = Seen()
        with broadcasting(cluster, seen, tmp_path):
            wait_until(lambda: len(seen) == 6, what="everything")
            for name in cluster.brokers:
                wait_members(cluster, "x", broker=name)
            cluster.kill("broker-a")
            cluster.revive("broker-a")
            wait_members(cluster, "x")
            wait_until(lambda: kept(tmp_path) == [3, 3], what="the file")
            admin.reset_offset("g", "orders", offset=2)
            wait_until(lambda: len(seen) == 8, what="the last of each queue again")
