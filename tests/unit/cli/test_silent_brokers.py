"""What commands that look at several broker groups say of those that do not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.cli.main import main
from penstock.client import Admin, PullConsumer
from penstock.formats.trace import TRACE_TOPIC
from tests.support.client.pull_consumers import QUICK
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

LOOKS = [
    ["topic", "show", "orders"],
    ["group", "list"],
    ["group", "show", "g"],
    ["message", "query", "--topic", "orders", "--key", "k"],
    ["dlq", "list"],
    ["dlq", "show", "--group", "g"],
    ["dlq", "resend", "--group", "g", "--dry-run"],
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """One of whose two broker groups, each with a dead letter of group ``g``, one is down."""
    with RunningCluster(shards=2, topics={"orders": 1, TRACE_TOPIC: 1}) as made, Admin(made.namesrv) as admin:
        for shard in ("broker-a", "broker-b"):
            made.put("orders", [b"one"], 0, broker_name=shard)
        with PullConsumer(made.namesrv, group="g", consume_from="first", config=QUICK) as puller:
            puller.subscribe("orders")
            for _ in range(2):
                puller.send_back(wait_until(lambda: puller.poll(0.1, max_messages=1), what="a message"), delay_level=-1)
            puller.commit()
        wait_until(lambda: "%DLQ%g" in admin.list_topics() and len(admin.topic("%DLQ%g").shards) == 2, what="letters")
        made.kill("broker-b")
        wait_until(lambda: admin.cluster().absent == ["broker-b"], what="the death")
        yield made


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_what_is_missing_above_is_said(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, "--namesrv", cluster.namesrv]) == 0
    assert "broker group broker-b did not answer: its" in capsys.readouterr().err


@pytest.mark.parametrize("command", LOOKS[:5], ids=" ".join)
def test_programs_are_told_who_did_not_answer(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, "--namesrv", cluster.namesrv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unreachable"] == ["broker-b"]


@pytest.mark.parametrize("command", [["message", "show", "0" * 32, "--topic", "orders"], ["trace", "0" * 32]])
def test_what_was_not_found_may_be_there(
    cluster: RunningCluster, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, "--namesrv", cluster.namesrv]) == 1
    assert "(broker-b did not answer)" in capsys.readouterr().err
