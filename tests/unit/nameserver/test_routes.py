"""The route table: who is in it, what a death and a return change, and who is refused."""

from __future__ import annotations

import time

import pytest

from penstock.nameserver.holders import TOPICS_AT_ONCE
from penstock.nameserver.routes import EXPIRY_MS, NO_CHANGE, RouteTable
from penstock.proto.errors import FlowControl, InvalidArgument, InvalidName, WrongCluster
from penstock.proto.wire.common_pb2 import MASTER, SLAVE, TopicConfig
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from tests.support.broker.registrations import members_of, queues_of, registration, topic_config


def heartbeat(role: int = 0, epoch: int = 0, end: int = 0) -> BrokerReport.Heartbeat:
    return BrokerReport.Heartbeat(role=role, epoch=epoch, end_offset=end)  # type: ignore[arg-type]


def caught_up(table: RouteTable) -> frozenset[str]:
    """The topics that changed in the steps of ``table``, until none is left."""
    changed: frozenset[str] = frozenset()
    while table.holders.is_behind:
        changed |= table.holders.step()
    return changed


def test_a_topics_route_is_the_union_over_the_shards_that_have_it() -> None:
    table = RouteTable()
    change = table.register(1, registration("broker-b", topics=("T", "U")), 0.0)
    assert change.topics == {"T", "U"}
    assert change.shards == {"broker-b"}
    table.register(2, registration("broker-a", configs=(topic_config("T", 8, kind="NORMAL"),)), 0.0)
    table.register(3, registration("broker-a", 1, role=SLAVE, topics=("T",)), 0.0)
    route = table.route("T")
    assert route.exists
    assert queues_of(route) == {"broker-a": 8, "broker-b": 4}
    assert [queue.broker_name for queue in route.queues] == ["broker-a", "broker-b"]
    assert members_of(route) == {"broker-a": {0: "MASTER", 1: "SLAVE"}, "broker-b": {0: "MASTER"}}
    assert dict(route.attributes) == {"kind": "NORMAL"}
    assert queues_of(table.route("U")) == {"broker-b": 4}
    assert table.holders.topics() == ["T", "U"]


def test_a_topic_that_does_not_exist_comes_with_all_living_shards() -> None:
    table = RouteTable()
    table.register(1, registration("broker-b", topics=("T",)), 0.0)
    table.register(2, registration("broker-a"), 0.0)
    route = table.route("new")
    assert not route.exists
    assert not route.queues
    assert [(shard.broker_name, shard.auto_create_topics) for shard in route.shards] == [
        ("broker-a", True),
        ("broker-b", True),
    ]


def test_members_are_told_with_their_data_ports_and_another_port_is_news() -> None:
    table = RouteTable()
    for port in (10912, 10913):
        told = registration("broker-a", topics=("T",))
        told.identity.data_port = port
        assert table.register(1, told, 0.0).shards == {"broker-a"}
        assert [member.data_port for member in table.route("T").shards[0].members] == [port]
    told.identity.data_port = 65_536
    with pytest.raises(InvalidArgument, match="data port 65536"):
        table.register(1, told, 0.0)


def test_when_the_master_is_gone_its_topics_stay_with_the_slave() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T", "U")), 0.0)
    table.register(2, registration(broker_id=1, role=SLAVE, topics=("T",)), 0.0)
    change = table.unregister(1)
    assert change == NO_CHANGE._replace(shards=frozenset({"broker-a"}))
    assert queues_of(table.route("U")) == {"broker-a": 4}
    assert members_of(table.route("U")) == {"broker-a": {1: "SLAVE"}}


def test_a_nameserver_that_never_saw_the_master_learns_topics_from_the_slave() -> None:
    table = RouteTable()
    table.register(1, registration(broker_id=1, role=SLAVE, topics=("T",)), 0.0)
    assert members_of(table.route("T")) == {"broker-a": {1: "SLAVE"}}
    change = table.register(2, registration(topics=("T", "U")), 0.0)
    assert change.topics == {"U"}


def test_a_registration_replaces_all_that_was_known_of_the_broker() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T", "U")), 0.0)
    change = table.register(1, registration(configs=(topic_config("T"), topic_config("V"))), 0.0)
    assert change.topics == {"U", "V"}
    assert change.shards == frozenset()
    assert change.ended == ()
    assert table.holders.topics() == ["T", "V"]


def test_topics_are_changed_one_by_one() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T", "U")), 0.0)
    changes = BrokerReport.TopicChanges(updated=[topic_config("T"), topic_config("V", 2)], removed=["U", "never-there"])
    assert table.topics_changed(1, changes, 0.0).topics == {"U", "V"}
    assert queues_of(table.route("V")) == {"broker-a": 2}
    assert not table.route("U").exists


def test_a_slaves_changes_do_not_count_while_the_masters_topics_are_known() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T",)), 0.0)
    table.register(2, registration(broker_id=1, role=SLAVE), 0.0)
    changes = BrokerReport.TopicChanges(updated=[topic_config("X")])
    assert table.topics_changed(2, changes, 0.0) == NO_CHANGE
    assert table.holders.topics() == ["T"]


def test_a_heartbeat_moves_offsets_and_changes_nothing_else() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T",)), 0.0)
    table.route("T")
    assert table.heartbeat(1, heartbeat(MASTER, end=77), 0.0) == NO_CHANGE
    assert table.route("T").shards[0].members[0].end_offset == 77
    assert table.heartbeat(1, heartbeat(end=78), 0.0) == NO_CHANGE
    assert table.route("T").shards[0].members[0].role == MASTER


def test_a_change_of_role_is_a_change_of_the_shard() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T",), epoch=1), 0.0)
    table.register(2, registration(broker_id=1, role=SLAVE, topics=("T", "U")), 0.0)
    assert table.heartbeat(1, heartbeat(SLAVE, 1), 0.0).shards == {"broker-a"}
    change = table.heartbeat(2, heartbeat(MASTER, 2), 0.0)
    assert change.shards == {"broker-a"}
    assert change.topics == {"U"}
    assert members_of(table.route("T")) == {"broker-a": {0: "SLAVE", 1: "MASTER"}}
    assert table.shard("broker-a").epoch == 2


def test_of_two_masters_the_higher_epoch_is_shown() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T",), epoch=1), 0.0)
    table.register(2, registration(broker_id=1, topics=("T",), epoch=2), 0.0)
    assert members_of(table.route("T")) == {"broker-a": {1: "MASTER"}}


def test_an_older_master_is_not_believed_after_the_newer_one_died() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T",), epoch=1), 0.0)
    table.register(2, registration(broker_id=1, topics=("T",), epoch=2), 0.0)
    table.unregister(2)
    assert members_of(table.route("T")) == {"broker-a": {}}
    table.heartbeat(1, heartbeat(SLAVE, 2), 0.0)
    assert members_of(table.route("T")) == {"broker-a": {0: "SLAVE"}}


def test_two_masters_in_one_epoch_are_refused_by_name() -> None:
    table = RouteTable()
    table.register(1, registration(epoch=3), 0.0)
    with pytest.raises(WrongCluster, match=r"broker 1 at broker-a-1:10911 .* epoch 3.* broker 0 at broker-a-0:10911"):
        table.register(2, registration(broker_id=1, epoch=3), 0.0)
    table.register(2, registration(broker_id=1, role=SLAVE, epoch=3), 0.0)
    with pytest.raises(WrongCluster, match="calls itself master in epoch 3"):
        table.heartbeat(2, heartbeat(MASTER, 3), 0.0)
    assert members_of(table.route("x")) == {"broker-a": {0: "MASTER", 1: "SLAVE"}}


def test_a_second_living_broker_with_the_same_id_is_refused() -> None:
    table = RouteTable()
    table.register(1, registration(address="10.0.0.1:10911", instance="one"), 0.0)
    with pytest.raises(WrongCluster, match=r"alive at 10\.0\.0\.1:10911"):
        table.register(2, registration(address="10.0.0.2:10911", instance="two"), 0.0)
    assert table.shard("broker-a").members[0].address == "10.0.0.1:10911"


@pytest.mark.parametrize(("address", "instance"), [("old:1", "restarted"), ("moved:2", "same")])
def test_a_restarted_broker_replaces_itself_and_the_old_streams_end_is_ignored(address: str, instance: str) -> None:
    table = RouteTable()
    table.register(1, registration(address="old:1", instance="same", topics=("T",)), 0.0)
    change = table.register(2, registration(address=address, instance=instance, topics=("T",)), 0.0)
    assert change.ended == (1,)
    assert table.unregister(1) == NO_CHANGE
    assert table.route("T").exists
    with pytest.raises(InvalidArgument, match="register first"):
        table.heartbeat(1, heartbeat(), 0.0)


def test_another_cluster_is_refused_while_the_broker_group_lives() -> None:
    table = RouteTable()
    table.register(1, registration(cluster="c1"), 0.0)
    with pytest.raises(WrongCluster, match="is in cluster c1"):
        table.register(2, registration(broker_id=1, role=SLAVE, cluster="c2"), 0.0)
    table.unregister(1)
    table.register(2, registration(broker_id=1, role=SLAVE, cluster="c2"), 0.0)


def test_an_address_belongs_to_one_broker() -> None:
    table = RouteTable()
    table.register(1, registration("broker-a", address="h:1"), 0.0)
    with pytest.raises(WrongCluster, match="address h:1 belongs to broker 0 of broker-a"):
        table.register(2, registration("broker-b", address="h:1"), 0.0)
    table.unregister(1)
    table.register(2, registration("broker-b", address="h:1"), 0.0)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (registration("broker/a"), InvalidName),
        (registration(cluster=""), InvalidName),
        (registration(broker_id=-1), InvalidArgument),
        (registration(address="no-port"), InvalidArgument),
        (registration(address="h:1" + "x" * 400), InvalidArgument),
        (registration(role=0), InvalidArgument),  # type: ignore[arg-type]
        (registration(topics=("T", "a b")), InvalidName),
        (registration(configs=(TopicConfig(topic="T", read_queues=-1),)), InvalidArgument),
    ],
)
def test_an_illegal_registration_is_refused_and_changes_nothing(
    bad: BrokerReport.Registration, error: type[Exception]
) -> None:
    table = RouteTable()
    with pytest.raises(error):
        table.register(1, bad, 0.0)
    assert not table.cluster().shards
    assert table.unregister(1) == NO_CHANGE


def test_a_session_speaks_for_one_broker_only() -> None:
    table = RouteTable()
    table.register(1, registration("broker-a"), 0.0)
    with pytest.raises(InvalidArgument, match="cannot register"):
        table.register(1, registration("broker-b"), 0.0)


def test_topics_without_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.routes.TOPICS_PER_BROKER_MAX", 2)
    table = RouteTable()
    with pytest.raises(FlowControl):
        table.register(1, registration(topics=("A", "B", "C")), 0.0)
    table.register(1, registration(topics=("A", "B")), 0.0)
    with pytest.raises(FlowControl):
        table.topics_changed(1, BrokerReport.TopicChanges(updated=[topic_config("C")]), 0.0)


def test_one_registration_too_many_is_refused_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.routes.TOPICS_MAX", 5)
    table = RouteTable()
    table.register(1, registration("broker-a", topics=("A", "B", "C")), 0.0)
    with pytest.raises(FlowControl, match="3 topics, and 3 of other brokers are known here: at most 5 in all"):
        table.register(2, registration("broker-b", topics=("A", "B", "C")), 0.0)
    table.register(3, registration("broker-a", topics=("A", "B", "C", "D", "E")), 1.0)
    assert table.holders.topics() == ["A", "B", "C", "D", "E"]


def test_attributes_of_a_topic_are_bounded() -> None:
    table = RouteTable()
    large = topic_config("T")
    large.attributes["a"] = "x" * 16_384
    with pytest.raises(InvalidArgument, match=r"topic T: attributes of 16\d+ bytes: at most 16384 are allowed"):
        table.register(1, registration(configs=(large,)), 0.0)
    assert not table.cluster().shards


def test_a_silent_broker_is_out_after_the_expiry_time_and_no_earlier() -> None:
    table = RouteTable()
    table.register(1, registration("broker-a", topics=("T",)), 100.0)
    table.register(2, registration("broker-b", topics=("T",)), 101.0)
    table.heartbeat(1, heartbeat(), 101.5)
    assert table.expire(103.4).ended == ()
    assert table.expire(103.5).ended == (2,)
    change = table.expire(101.5 + EXPIRY_MS / 1000)
    assert change.ended == (1,)
    assert change.topics == {"T"}
    assert change.shards == {"broker-a"}
    assert not table.route("T").shards


def test_silence_is_excused_when_the_nameserver_stood_still() -> None:
    table = RouteTable()
    table.register(1, registration(), 100.0)
    table.excuse_silence(110.0)
    assert table.expire(112.4).ended == ()
    assert table.expire(112.5).ended == (1,)


def test_the_longest_silent_are_told_first() -> None:
    table = RouteTable()
    for session in (1, 2, 3):
        table.register(session, registration(f"broker-{session}"), float(session))
    table.heartbeat(1, heartbeat(), 4.0)
    table.unregister(3)
    assert table.expire(10.0).ended == (2, 1)


def test_registration_of_ten_thousand_topics_is_no_work_of_seconds() -> None:
    table = RouteTable()
    topics = tuple(f"topic-{number}" for number in range(10_000))
    first, second = registration("broker-a", topics=topics), registration("broker-b", topics=topics)
    started = time.thread_time()  # the processor's, whoever else uses it
    table.register(1, first, 0.0)
    table.register(2, second, 0.0)
    table.unregister(1)
    caught_up(table)
    assert time.thread_time() - started < 3.0, "two registrations and a removal: 0.1 s"
    assert len(table.holders.topics()) == 10_000


def test_very_many_topics_change_in_steps() -> None:
    """Of one step none costs what all of them do, and at the end the table is as if it had been one."""
    table = RouteTable()
    names = [f"topic-{number:05}" for number in range(3 * TOPICS_AT_ONCE)]
    assert table.register(1, registration(topics=tuple(names)), 0.0).topics == frozenset()
    assert len(table.holders.step()) == TOPICS_AT_ONCE
    assert table.route(names[0]).exists
    assert table.route(names[-1]).exists, "the index does not know it yet, its group does"
    assert names[-1] in table.holders
    assert "broker-a" in table.holders[names[-1]]
    assert caught_up(table) == frozenset(names[TOPICS_AT_ONCE:])
    assert table.holders.topics() == names
    kept = names[len(names) // 2 :]
    table.register(1, registration(topics=tuple(kept)), 1.0)
    assert not table.route(names[0]).exists, "the index still has it, its group does not"
    assert caught_up(table) == frozenset(names) - frozenset(kept)
    table.unregister(1)
    assert len(table.holders.step()) == TOPICS_AT_ONCE
    assert table.register(2, registration(topics=("T",)), 2.0).topics == {"T"}, "though it has not caught up"
    assert caught_up(table) >= frozenset(kept)
    assert table.holders.topics() == ["T"]


def test_a_former_masters_own_changes_do_not_disturb_the_steps() -> None:
    table = RouteTable()
    names = tuple(f"topic-{number:05}" for number in range(2 * TOPICS_AT_ONCE))
    table.register(1, registration(topics=names, epoch=1), 0.0)
    table.register(2, registration(broker_id=1, role=SLAVE, topics=("T",)), 0.0)
    caught_up(table)
    table.heartbeat(1, heartbeat(SLAVE, 1), 1.0)
    table.heartbeat(2, heartbeat(MASTER, 2), 1.0)
    table.topics_changed(1, BrokerReport.TopicChanges(removed=names), 2.0)
    assert caught_up(table) >= {"T", *names}
    assert table.holders.topics() == ["T"]
