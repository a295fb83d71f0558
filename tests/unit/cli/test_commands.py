"""Commands against stand-ins of the client classes: what they ask, print and return."""

from __future__ import annotations

import itertools
import json
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands.cluster import print_new
from penstock.cli.main import main
from penstock.cli.statuses import cluster_document
from penstock.client import Listing, SendReceipt, SendStatus
from penstock.client.administer.admin_results import (
    ClusterInfo,
    GroupInfo,
    GroupLag,
    GroupMember,
    ProducerInfo,
    QueueLag,
    QueuePosition,
    QueueStats,
    TopicInfo,
    TopicShard,
    TopicStats,
)
from penstock.deploy import LocalCluster
from penstock.deploy.plan import new_plan
from penstock.proto.errors import BrokerUnavailable, TopicNotFound
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import MASTER


class FakeMessage:
    """One received message."""

    broker_name, queue_id, queue_offset, tag, keys = "broker-a", 0, 7, "paid", ["order-17"]
    store_timestamp_ms = 1_700_000_000_000
    body = b"caf\xc3\xa9"

    def as_document(self) -> dict[str, Any]:
        return {"topic": "orders", "body": self.body.decode()}


class FakeAdmin:
    """Answers from memory and keeps what it was asked."""

    asked: list[tuple[Any, ...]] = []  # noqa: RUF012  emptied by the fixture

    def __init__(self, namesrv: str) -> None:
        self.asked.append(("open", namesrv))

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def list_topics(self) -> list[str]:
        return ["orders"]

    def topic(self, topic: str) -> TopicInfo:
        if topic != "orders":
            raise TopicNotFound(f"topic {topic!r} does not exist")
        return TopicInfo("orders", [TopicShard("broker-a", 8, 8, 6)], absent=["broker-b"])

    def topic_stats(self, topic: str) -> TopicStats:
        return TopicStats(topic, 5, [QueueStats(topic, "broker-a", 0, 0, 5, 5, 1)], ["broker-b"])

    def forget_shard(self, broker_name: str) -> None:
        self.asked.append(("forget", broker_name))

    def create_topic(self, topic: str, queues: int, **options: Any) -> TopicInfo:
        self.asked.append(("create", topic, queues, options))
        return self.topic("orders")

    def list_groups(self) -> Listing[str]:
        return Listing(["billing"], ["broker-c"])

    def group(self, group: str) -> GroupInfo:
        return GroupInfo(group, True, 16, {}, [GroupMember("me", {"orders": "*"}, [("orders", "broker-a", 0)])])

    def producers(self, group: str) -> list[ProducerInfo]:
        return [ProducerInfo("maker", True, ["broker-a"])] if group == "payments" else []

    def group_lag(self, group: str) -> GroupLag:
        return GroupLag(group, 12_345, [QueueLag("orders", "broker-a", 0, 3, 0, 5, 2, "me")])

    def reset_offset(self, *arguments: Any, **options: Any) -> list[QueuePosition]:
        self.asked.append(("reset", arguments, options))
        return [QueuePosition("orders", "broker-a", 0, 3)]

    def message_at(self, *arguments: Any, **options: Any) -> FakeMessage:
        self.asked.append(("at", arguments, options))
        return FakeMessage()

    def query_messages(self, *_: Any, **__: Any) -> Listing[FakeMessage]:
        return Listing([FakeMessage()], [])


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    monkeypatch.setattr("penstock.client.Admin", FakeAdmin, raising=False)
    FakeAdmin.asked.clear()
    return FakeAdmin


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_topics_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "topic", "list")["topics"][0]["topic"] == "orders"
    assert run_json(capsys, "topic", "list")["topics"][0]["absent"] == ["broker-b"]
    assert main(["topic", "list"]) == 0
    assert "broker-b (down)" in capsys.readouterr().out
    shown = run_json(capsys, "topic", "show", "orders")
    assert shown["messages"] == 5
    assert shown["queues"][0]["max_offset"] == 5
    assert shown["unreachable"] == ["broker-b"]
    assert main(["topic", "show", "orders"]) == 0
    captured = capsys.readouterr()
    assert "5 messages" in captured.out
    assert "broker-b did not answer" in captured.err


def test_a_broker_group_is_forgotten(capsys: pytest.CaptureFixture[str], admin: type[FakeAdmin]) -> None:
    assert run_json(capsys, "cluster", "forget", "broker-b") == {"broker_name": "broker-b", "forgotten": True}
    assert admin.asked[-1] == ("forget", "broker-b")


def test_a_missing_topic_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "show", "ordres"]) == 1
    assert capsys.readouterr().err == "error: topic 'ordres' does not exist\n"


def test_topic_create_passes_only_what_was_given(capsys: pytest.CaptureFixture[str], admin: type[FakeAdmin]) -> None:
    run_json(
        capsys, "topic", "create", "orders", "--queues", "4", "--perm", "r", "--attribute", "a=b", "--namesrv", "h:1"
    )
    assert admin.asked == [
        ("open", "h:1"),
        ("create", "orders", 4, {"attributes": {"a": "b"}, "brokers": None, "perm": 4}),
    ]


def test_topic_create_takes_a_type_and_order(admin: type[FakeAdmin]) -> None:
    assert main(["topic", "create", "steps", "--type", "FIFO", "--order"]) == 0
    assert admin.asked[-1] == ("create", "steps", 8, {"type": "FIFO", "order_topic": True, "brokers": None})
    assert main(["topic", "create", "steps", "--type", "fifo"]) == 2


def test_groups_are_shown_with_lag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "group", "list")["groups"][0]["lag"] == 12_345
    assert run_json(capsys, "group", "show", "billing")["queues"][0]["client_id"] == "me"
    assert main(["group", "show", "billing"]) == 0
    assert "12,345" in capsys.readouterr().out


def test_a_group_is_shown_with_its_producers_of_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    expected = [{"client_id": "maker", "answers": True, "broker_names": ["broker-a"]}]
    assert run_json(capsys, "group", "show", "payments")["producers"] == expected
    assert main(["group", "show", "payments"]) == 0
    assert "maker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to", "first"], {"to": "first", "queues": None, "dry_run": False}),
        (["--to", "1700000000000"], {"timestamp_ms": 1_700_000_000_000, "queues": None, "dry_run": False}),
        (
            ["--offset", "3", "--queue", "broker-a:2", "--queue", "broker-b:0", "--dry-run"],
            {"offset": 3, "queues": [("broker-a", 2), ("broker-b", 0)], "dry_run": True},
        ),
    ],
)
def test_offset_reset_takes_a_place_in_one_of_three_ways(
    capsys: pytest.CaptureFixture[str], admin: type[FakeAdmin], options: list[str], expected: dict[str, Any]
) -> None:
    run_json(capsys, "offset", "reset", "billing", "orders", *options)
    assert admin.asked[-1] == ("reset", ("billing", "orders"), expected)


def test_a_dry_run_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offset", "reset", "billing", "orders", "--to", "first", "--dry-run"]) == 0
    assert "group billing: nothing was changed" in capsys.readouterr().out
    assert main(["offset", "reset", "billing", "orders", "--to", "first"]) == 0
    assert "nothing was changed" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--to", "first", "--offset", "1"], ["--offset", "1", "--queue", "x"]])
def test_offset_reset_without_one_clear_place_is_bad_usage(options: list[str]) -> None:
    assert main(["offset", "reset", "billing", "orders", *options]) == 2


def test_messages_are_looked_up(capsys: pytest.CaptureFixture[str], admin: type[FakeAdmin]) -> None:
    place = ["--topic", "orders", "--queue", "0", "--offset", "7"]
    assert run_json(capsys, "message", "show", *place)["body"] == "café"
    assert admin.asked[-1] == ("at", ("orders", 0, 7), {"broker_name": None})
    assert len(run_json(capsys, "message", "query", "--topic", "orders", "--key", "order-17")["messages"]) == 1
    assert main(["message", "show"]) == 2
    assert main(["message", "show", "ID", *place]) == 2
    assert run_json(capsys, "message", "show", "--topic", "orders", "--queue", "broker-b:1", "--offset", "7")
    assert admin.asked[-1] == ("at", ("orders", 1, 7), {"broker_name": "broker-b"})


class FakeProducer:
    """Acknowledges every body but ``bad``."""

    def __init__(self, namesrv: str) -> None: ...

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send_async(self, topic: str, body: bytes, **_: Any) -> Future[SendReceipt]:
        future: Future[SendReceipt] = Future()
        if body == b"bad":
            future.set_exception(BrokerUnavailable("away"))
        else:
            status = SendStatus.SEND_OK
            future.set_result(SendReceipt(body.decode(), topic, "broker-a", 1, 2, "OFF", status, 3))
        return future


def test_send_takes_lines_and_reports_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"one\r\n\nbad\nlast")
    monkeypatch.setattr("penstock.client.Producer", FakeProducer, raising=False)
    with open(tmp_path / "lines") as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert main(["send", "orders", "-"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "one broker-a:1:2\nlast broker-a:1:2\n"
    assert captured.err == "error: message 2: away\n"


def test_a_topic_that_a_send_makes_is_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.Producer", FakeProducer, raising=False)
    assert main(["send", "ordres", "hello"]) == 0
    told = capsys.readouterr()
    assert told.err == "topic 'ordres' does not exist: making it, if the brokers allow that\n"
    assert told.out == "hello broker-a:1:2\n"


def test_send_one_body_prints_its_receipt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.Producer", FakeProducer, raising=False)
    receipt = run_json(capsys, "send", "orders", "hello")
    assert (receipt["message_id"], receipt["status"], receipt["queue_offset"]) == ("hello", "SEND_OK", 2)


class FakeConsumer:
    """Has three messages."""

    def __init__(self, namesrv: str, **options: Any) -> None:
        self.left = 3

    def __enter__(self) -> FakeConsumer:
        return self

    def __exit__(self, *_: object) -> None: ...
    def subscribe(self, topic: str, expression: str) -> None: ...
    def assign(self, queues: object, expression: str) -> None: ...

    def queues(self, topic: str) -> list[object]:
        return []

    def poll(self, timeout_s: float, max_messages: int) -> list[FakeMessage]:
        count = min(max_messages, self.left, 2)
        self.left -= count
        return [FakeMessage() for _ in range(count)]


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
def test_tail_prints_a_line_per_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, group: list[str]
) -> None:
    monkeypatch.setattr("penstock.client.PullConsumer", FakeConsumer, raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["tail", "orders", "-n", "3", *group]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(" broker-a:0:7 [paid] (order-17) café")


@pytest.mark.parametrize("brokers", [[], ["a shard without the topic"]])
def test_a_tail_goes_on_while_brokers_register_again_after_a_restart_of_everything(
    monkeypatch: pytest.MonkeyPatch, brokers: list[str]
) -> None:
    looks = itertools.count(1)
    away = 3 if brokers else 50  # the first look is before anything is restarted

    class Restarted(FakeAdmin):
        def topic(self, topic: str) -> TopicInfo:
            return super().topic(topic if not 1 < next(looks) <= away else "unknown yet")

        def cluster(self) -> ClusterInfo:
            return ClusterInfo([], brokers)  # type: ignore[arg-type]

    class Quiet(FakeConsumer):
        polls = 0

        def poll(self, timeout_s: float, max_messages: int) -> list[FakeMessage]:
            self.polls += 1
            return super().poll(timeout_s, max_messages) if self.polls > 4 * away else []

    monkeypatch.setattr("penstock.client.Admin", Restarted, raising=False)
    monkeypatch.setattr("penstock.client.PullConsumer", Quiet, raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["tail", "orders", "-n", "1"]) == 0


@pytest.mark.parametrize(
    ("count", "number", "code"),
    [(["-n", "9"], signal.SIGTERM, 143), (["-n", "9"], signal.SIGINT, 130), ([], signal.SIGTERM, 0)],
)
def test_a_tail_that_a_signal_ends_before_its_count_is_not_done(
    monkeypatch: pytest.MonkeyPatch, count: list[str], number: signal.Signals, code: int
) -> None:
    class Ended(FakeConsumer):
        def poll(self, timeout_s: float, max_messages: int) -> list[FakeMessage]:
            signal.raise_signal(number)
            return super().poll(timeout_s, max_messages)

    monkeypatch.setattr("penstock.client.PullConsumer", Ended, raising=False)
    former = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(["tail", "orders", *count]) == code
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


def test_cluster_status_has_every_field_for_living_and_dead_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = new_plan(shards=1, replicas=2, nameservers=1, mode="async", base_port=0, settings={})
    plan.save(tmp_path)
    cluster = LocalCluster(tmp_path)
    dead = cluster.states()
    alive = [_running(state) if state.node.name == "broker-a-0" else state for state in dead]
    monkeypatch.setattr(LocalCluster, "states", lambda _: alive)
    answer = BrokerStatus(role=MASTER, epoch=3, min_offset=1, max_offset=9, flushed_offset=8, confirm_offset=7)
    monkeypatch.setattr("penstock.bench.health.broker_statuses", lambda addresses: [answer for _ in addresses])
    document = cluster_document(cluster)
    fields = "name broker_name broker_id role epoch address pid alive min_offset max_offset flushed_offset "
    fields += "confirm_offset lag_bytes store_path config_path log_path"
    assert all(set(fields.split()) <= set(broker) for broker in document["brokers"])
    master, slave = document["brokers"]
    assert (master["role"], master["epoch"], master["max_offset"], master["alive"]) == ("MASTER", 3, 9, True)
    assert (slave["role"], slave["epoch"], slave["max_offset"], slave["alive"]) == (None, None, None, False)
    assert document["nameservers"][0]["name"] == "nameserver-0"


def test_cluster_status_says_why_a_running_broker_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new_plan(shards=1, replicas=1, nameservers=1, mode="async", base_port=0, settings={}).save(tmp_path)
    alive = [_running(state) for state in LocalCluster(tmp_path).states()]
    monkeypatch.setattr(LocalCluster, "states", lambda _: alive)
    monkeypatch.setattr("penstock.bench.health.broker_statuses", lambda addresses: [None for _ in addresses])
    monkeypatch.setattr("penstock.bench.health.silent_because", lambda address: "the call is not signed")
    assert main(["cluster", "status", "--dir", str(tmp_path)]) == 0
    assert "broker-a-0 runs and tells nothing of itself: the call is not signed" in capsys.readouterr().err


def _running(state: Any) -> Any:
    from dataclasses import replace

    return replace(state, state="running", pid=1)


def test_a_setting_that_brokers_would_refuse_is_refused_before_it_is_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "up", "--dir", str(tmp_path), "--base-port", "0", "--set", "flushDiskTyp=SYNC_FLUSH"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "error: --set: unknown key 'flushDiskTyp': did you mean 'flushDiskType'?"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_following_a_log_goes_on_in_the_file_that_a_node_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker-a-0.log"
    path.write_text("old line\n" * 100)
    position = path.stat().st_size
    path.write_text("first line of the new file\nhalf a li")
    position = print_new("", path, position)
    assert capsys.readouterr().out == "first line of the new file\n"
    path.write_text("first line of the new file\nhalf a line\n")
    assert print_new("broker-a-0", path, position) == path.stat().st_size
    assert capsys.readouterr().out == "broker-a-0: half a line\n"
