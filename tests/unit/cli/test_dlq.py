"""``penstock dlq`` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.client import Admin, PullConsumer, RetryPolicy
from tests.support.client.push_consumers import QUICK, Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    """One with the dead letters 1, 2 and 3 of group ``g``."""
    with RunningCluster(topics={"orders": 1}) as made:
        made.put("orders", numbered(5), 0, tags=["paid"] * 5)
        with PullConsumer(made.namesrv, group="g", consume_from="first", config=QUICK) as puller:
            puller.subscribe("orders")
            puller.send_back(wait_until(lambda: puller.poll(0.1), what="messages")[1:4], delay_level=-1)
            puller.commit()
        wait_until(lambda: "%DLQ%g" in _topics(made), what="the topic in the routes")
        yield made


def _topics(cluster: RunningCluster) -> list[str]:
    with Admin(cluster.namesrv) as admin:
        return admin.list_topics()


def asked(cluster: RunningCluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["dlq", *arguments, "--namesrv", cluster.namesrv, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")] or [{}]


def counts(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    capsys.readouterr()
    assert main(["dlq", "list", "--namesrv", cluster.namesrv, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["dead_letters"]
    assert (row["group"], row["broker_name"]) == ("g", "broker-a")
    return row["messages"], row["waiting"]


def test_letters_are_counted_shown_and_sent_again_once(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert counts(cluster, capsys) == (3, 3)
    shown = asked(cluster, capsys, "show", "--group", "g")
    assert [(each["body"], each["origin_topic"], each["tag"], each["reconsume_times"]) for each in shown] == [
        (body, "orders", "paid", 1) for body in "123"
    ]
    assert len(asked(cluster, capsys, "show", "--group", "g", "-n", "2")) == 2
    assert main(["dlq", "resend", "--group", "g", "--dry-run", "--namesrv", cluster.namesrv]) == 0
    assert "3 dead letters of group g would be sent again" in capsys.readouterr().err
    assert main(["dlq", "resend", "--group", "g", "-n", "1", "--namesrv", cluster.namesrv]) == 0
    assert counts(cluster, capsys) == (3, 2)
    assert main(["dlq", "resend", "--group", "g", "--namesrv", cluster.namesrv]) == 0
    assert counts(cluster, capsys) == (3, 0)
    assert main(["dlq", "resend", "--group", "g", "--namesrv", cluster.namesrv]) == 0
    assert "0 dead letters" in capsys.readouterr().err
    assert len(asked(cluster, capsys, "show", "--group", "g", "--all")) == 3
    seen = Seen()
    with consumer(cluster, seen):
        wait_until(lambda: len(seen) == 3, what="the letters again")
    assert sorted((message.body, message.topic, message.reconsume_times) for message in seen.messages) == [
        (body, "orders", 1) for body in (b"1", b"2", b"3")
    ]


def test_letters_of_a_group_that_tries_nothing_again_are_tried_once_more(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_group("g", retry_max_times=0)
    assert main(["dlq", "resend", "--group", "g", "--namesrv", cluster.namesrv]) == 0
    assert counts(cluster, capsys) == (3, 0)
    seen = Seen()
    with consumer(cluster, seen):
        wait_until(lambda: len(seen) == 3, what="the letters again")


def test_a_group_without_dead_letters_has_none(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_group("other")
    for command in ("list", "show"):
        assert main(["dlq", command, "--group", "other", "--namesrv", cluster.namesrv]) == 0
    assert main(["dlq", "resend", "--group", "other", "--namesrv", cluster.namesrv]) == 0
    assert "0 dead letters of group other" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "show", "resend"])
def test_dead_letters_of_a_group_that_does_not_exist_are_an_error_with_the_nearest_name(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_group("billing")
    assert main(["dlq", command, "--group", "biling", "--namesrv", cluster.namesrv]) == 1
    told = capsys.readouterr()
    assert "group 'biling' does not exist at any broker" in told.err
    assert "'billing'" in told.err
    assert told.out == ""
    with Admin(cluster.namesrv) as admin:
        assert "biling" not in admin.list_groups()


def test_policies_are_set_and_shown(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(cluster.namesrv) as admin:
        exponential = RetryPolicy(initial_s=1.5, max_s=60, multiplier=3)
        made = admin.create_group("x", retry_policy=exponential, retry_max_times=4)
        assert (made.retry_policy, made.retry_max_times) == (exponential, 4)
        assert admin.create_group("x", retry_policy=[1, 2.5]).retry_policy == RetryPolicy(delays_s=(1, 2.5))
        assert main(["group", "create", "x", "--retry-delays", "10s 1m", "--namesrv", cluster.namesrv]) == 0
        assert admin.group("x").retry_policy == RetryPolicy(delays_s=(10, 60))
        assert admin.create_group("x").retry_policy == RetryPolicy(delays_s=(10, 60))
        assert (
            main(["group", "create", "x", "--retry-max-times", "0", "--no-consume", "--namesrv", cluster.namesrv]) == 0
        )
        assert main(["group", "create", "x", "--no-broadcast", "--namesrv", cluster.namesrv]) == 0
        told = admin.group("x")
        assert (told.retry_max_times, told.consume_enable, told.broadcast_enable) == (0, False, False)
    assert main(["group", "create", "x", "--retry-delays", "10 s", "--namesrv", cluster.namesrv]) == 2
    assert "give times as 10s" in capsys.readouterr().err
