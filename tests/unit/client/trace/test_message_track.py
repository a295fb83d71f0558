"""Who has consumed a message, as each group's offsets and members say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.client import Admin, MessageTrack, MessageView, PullConsumer, PushConsumer, Sql, TrackType
from penstock.client.aio import AsyncAdmin
from tests.support.client.push_consumers import QUICK, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(shards=2, topics={"orders": 1, "others": 1}) as made:
        made.put("orders", numbered(3), 0, tags=["paid", "open", "paid"])
        yield made


def reads(cluster: RunningCluster, group: str, count: int, expression: str | Sql = "*") -> PullConsumer:
    """A member that has read and committed so many of broker-a's messages, and is there still."""
    made = PullConsumer(cluster.namesrv, group=group, consume_from="first", auto_commit=False, config=QUICK)
    made.subscribe("orders", expression)
    while count:
        count -= len(made.poll(5, max_messages=count))
        made.commit()
    wait_until(lambda: len(made.assignment()) == 2, what="the member's queues")
    return made


def tracks(cluster: RunningCluster, message: MessageView) -> dict[str, MessageTrack]:
    with Admin(cluster.namesrv) as admin:
        return {each.group: each for each in admin.message_track(message)}


def test_each_group_of_the_topic_is_tracked_by_its_offset_members_and_subscriptions(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(cluster.namesrv) as admin:
        second = admin.message_at("orders", 0, 1, broker_name="broker-a")
        admin.create_group("of-others")
    with reads(cluster, "gone", 3), reads(cluster, "behind-and-gone", 1):
        pass
    with (
        reads(cluster, "ahead", 3) as ahead,
        reads(cluster, "behind", 1),
        reads(cluster, "paid-only", 2, "paid"),
        reads(cluster, "by-condition", 3, Sql("TAGS IS NOT NULL")),
    ):
        found = tracks(cluster, second)
        assert {group: each.track_type.value for group, each in found.items()} == {
            "ahead": "CONSUMED",
            "behind": "NOT_CONSUME_YET",
            "behind-and-gone": "NOT_ONLINE",
            "by-condition": "CONSUMED",
            "gone": "CONSUMED",
            "paid-only": "CONSUMED_BUT_FILTERED",
        }
        assert found["ahead"] == MessageTrack("ahead", TrackType.CONSUMED, 3, ahead.client_id)
        assert found["gone"] == MessageTrack("gone", TrackType.CONSUMED, 3, None)
        assert found["behind"].committed_offset == 1

        async def awaited() -> list[MessageTrack]:
            async with AsyncAdmin(cluster.namesrv) as admin:
                return await admin.message_track(second)

        assert asyncio.run(awaited()) == list(found.values())
        capsys.readouterr()
        place = ["--topic", "orders", "--queue", "broker-a:0", "--offset", "1"]
        assert main(["message", "track", *place, "--namesrv", cluster.namesrv, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["message_id"] == second.message_id
        assert document["tracks"][0] == {
            "group": "ahead",
            "track_type": "CONSUMED",
            "committed_offset": 3,
            "client_id": ahead.client_id,
        }
        assert main(["message", "track", second.message_id, "--namesrv", cluster.namesrv]) == 0
        assert "CONSUMED_BUT_FILTERED" in capsys.readouterr().out
    assert main(["message", "track", "--topic", "orders", "--namesrv", cluster.namesrv]) == 2


def test_a_group_whose_members_get_everything_has_no_offset_to_tell(cluster: RunningCluster, tmp_path: Path) -> None:
    with Admin(cluster.namesrv) as admin:
        first = admin.message_at("orders", 0, 0, broker_name="broker-a")
    config = replace(QUICK, offsets_directory=tmp_path)
    consumer = PushConsumer(
        cluster.namesrv, group="all", listener=lambda message: None, model="broadcasting", config=config
    )
    consumer.subscribe("orders")
    with consumer:
        wait_until(lambda: "all" in tracks(cluster, first), what="the member's session")
        assert tracks(cluster, first)["all"].track_type is TrackType.CONSUME_BROADCASTING


def test_while_the_broker_of_its_queue_is_away_nobody_knows(cluster: RunningCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        first = admin.message_at("orders", 0, 0, broker_name="broker-a")
    with reads(cluster, "ahead", 3):
        cluster.kill("broker-a")
        assert tracks(cluster, first)["ahead"] == MessageTrack("ahead", TrackType.UNKNOWN, -1, None)
