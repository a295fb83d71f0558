"""The route table against a plain model that keeps facts and computes every route anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.nameserver.routes import EXPIRY_MS, Change, RouteTable
from penstock.nameserver.watches import Watcher, Watches
from penstock.proto.errors import InvalidArgument, PenstockError, WrongCluster
from penstock.proto.wire.common_pb2 import MASTER, SLAVE, Role
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from tests.support.broker.registrations import members_of, queues_of, registration, topic_config

NAMES = st.sampled_from(["broker-a", "broker-b"])
IDS = st.integers(0, 2)
ROLES = st.sampled_from([MASTER, SLAVE])
EPOCHS = st.integers(0, 3)
TOPICS = ["T", "U", "V"]
TABLES = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 3), max_size=3)
SESSIONS = st.integers(1, 40)


@dataclass
class Broker:
    """A living broker in the model."""

    session: int
    address: str
    instance: str
    role: Role
    epoch: int
    topics: dict[str, int]
    heard: float


@dataclass
class Group:
    """A broker group in the model."""

    live: dict[int, Broker] = field(default_factory=dict)
    newest: tuple[int, int] = (-1, -1)  # epoch and id of the last master shown
    remembered: dict[str, int] | None = None

    def master(self) -> int | None:
        masters = [(broker.epoch, broker_id) for broker_id, broker in self.live.items() if broker.role == MASTER]
        if not masters:
            return None
        epoch, broker_id = max(masters)
        return broker_id if epoch >= self.newest[0] or broker_id == self.newest[1] else None

    def note(self) -> None:
        broker_id = self.master()
        if broker_id is not None:
            self.newest = (self.live[broker_id].epoch, broker_id)
            self.remembered = self.live[broker_id].topics

    def topics(self) -> dict[str, int]:
        if self.remembered is not None:
            return self.remembered
        return self.live[min(self.live)].topics

    def shown(self) -> dict[int, str]:
        master = self.master()
        return {
            broker_id: Role.Name(broker.role)
            for broker_id, broker in self.live.items()
            if broker.role == SLAVE or broker_id == master
        }


class RoutesAgainstModel(RuleBasedStateMachine):
    """Any order of registrations, reports, ends and silences."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.groups: dict[str, Group] = {}
        self.absent: dict[str, dict[str, int]] = {}
        self.now = 0.0
        self.sessions = 0
        self.watches = Watches()
        self.watcher: Watcher = self.watches.open()
        self.watches.add(self.watcher, [*TOPICS, "absent"])
        self.sent: dict[str, Any] = {}

    def find(self, session: int) -> tuple[str, int, Broker] | None:
        for name, group in self.groups.items():
            for broker_id, broker in group.live.items():
                if broker.session == session:
                    return name, broker_id, broker
        return None

    def settle(self, name: str) -> None:
        self.absent.pop(name, None)
        self.groups[name].note()

    def leave(self, name: str, broker_id: int) -> None:
        topics = dict(self.groups[name].topics())
        del self.groups[name].live[broker_id]
        if self.groups[name].live:
            self.settle(name)
        else:
            del self.groups[name]
            self.absent[name] = topics

    def publish(self, change: Change) -> None:
        self.watches.publish(change, self.table)
        while self.watcher.pending:
            for topic in self.watcher.take(2):
                self.sent[topic] = self.told(topic)

    def told(self, topic: str) -> Any:
        route = self.table.route(topic)
        epochs = [shard.epoch for shard in route.shards]
        return route.exists, queues_of(route), members_of(route), epochs, [each.broker_name for each in route.absent]

    @rule(name=NAMES, broker_id=IDS, role=ROLES, epoch=EPOCHS, topics=TABLES, moved=st.booleans(), again=st.booleans())
    def register(
        self, name: str, broker_id: int, role: Role, epoch: int, topics: dict[str, int], moved: bool, again: bool
    ) -> None:
        self.sessions += 1
        address, instance = f"{name}-{broker_id}{'-moved' * moved}:1", f"{broker_id}{'-again' * again}"
        group = self.groups.get(name, Group(remembered=self.absent.get(name)))
        old = group.live.get(broker_id)
        twin = old is not None and address != old.address and instance != old.instance
        rival = role == MASTER and any(
            other.role == MASTER and other.epoch == epoch and other_id != broker_id
            for other_id, other in group.live.items()
        )
        configs = tuple(topic_config(topic, queues) for topic, queues in topics.items())
        report = registration(
            name, broker_id, role=role, epoch=epoch, address=address, instance=instance, configs=configs
        )
        try:
            change = self.table.register(self.sessions, report, self.now)
        except WrongCluster:
            assert twin or rival
            return
        assert not twin
        assert not rival
        assert change.ended == (() if old is None else (old.session,))
        group.live[broker_id] = Broker(self.sessions, address, instance, role, epoch, dict(topics), self.now)
        self.groups[name] = group
        self.settle(name)
        self.publish(change)

    @rule(session=SESSIONS, role=ROLES, epoch=EPOCHS)
    def heartbeat(self, session: int, role: Role, epoch: int) -> None:
        found = self.find(session)
        report = BrokerReport.Heartbeat(role=role, epoch=epoch)
        try:
            change = self.table.heartbeat(session, report, self.now)
        except PenstockError as error:
            if found is None:
                assert isinstance(error, InvalidArgument)
                return
            others = [other for key, other in self.groups[found[0]].live.items() if key != found[1]]
            assert any(other.role == MASTER and other.epoch == epoch for other in others)
            return
        assert found is not None
        name, _, broker = found
        broker.role, broker.epoch, broker.heard = role, epoch, self.now
        self.settle(name)
        self.publish(change)

    @rule(session=SESSIONS, updated=TABLES, removed=st.sets(st.sampled_from(TOPICS)))
    def change_topics(self, session: int, updated: dict[str, int], removed: set[str]) -> None:
        found = self.find(session)
        if found is None:
            return
        report = BrokerReport.TopicChanges(
            updated=[topic_config(topic, queues) for topic, queues in updated.items()], removed=sorted(removed)
        )
        change = self.table.topics_changed(session, report, self.now)
        for topic in removed:
            found[2].topics.pop(topic, None)
        found[2].topics.update(updated)
        found[2].heard = self.now
        self.publish(change)

    @rule(session=SESSIONS)
    def unregister(self, session: int) -> None:
        found = self.find(session)
        change = self.table.unregister(session)
        if found is None:
            assert change == Change()
            return
        self.leave(found[0], found[1])
        self.publish(change)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        try:
            change = self.table.forget(name)
        except InvalidArgument:
            assert name not in self.absent
            return
        assert change.topics == self.absent.pop(name).keys()
        self.publish(change)

    @rule(seconds=st.floats(0, 3, allow_nan=False))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        silent = [
            (name, broker_id, broker)
            for name, group in self.groups.items()
            for broker_id, broker in group.live.items()
            if self.now - broker.heard >= EXPIRY_MS / 1000
        ]
        # One after the other, the longest silent first, as the table does: who is last decides nothing else.
        for name, broker_id, _ in sorted(silent, key=lambda item: (item[2].heard, item[2].session)):
            self.leave(name, broker_id)
        change = self.table.expire(self.now)
        assert set(change.ended) == {broker.session for _, _, broker in silent}
        self.publish(change)

    @invariant()
    def every_route_equals_the_models(self) -> None:
        for topic in TOPICS:
            holders = {name: group for name, group in self.groups.items() if topic in group.topics()}
            absent = {name: topics[topic] for name, topics in self.absent.items() if topic in topics}
            route = self.table.route(topic)
            assert route.exists == bool(holders or absent)
            assert queues_of(route) == ({name: group.topics()[topic] for name, group in holders.items()} or absent)
            assert {queues.broker_name: queues.read_queues for queues in route.absent} == absent
            shown = holders if route.exists else self.groups
            assert members_of(route) == {name: group.shown() for name, group in shown.items()}
        tables = [*(group.topics() for group in self.groups.values()), *self.absent.values()]
        assert self.table.holders.topics() == sorted({topic for topics in tables for topic in topics})
        cluster = self.table.cluster()
        assert [shard.broker_name for shard in cluster.shards] == sorted(self.groups)
        assert [shard.broker_name for shard in cluster.absent] == sorted(self.absent)

    @invariant()
    def the_watcher_was_sent_every_change(self) -> None:
        for topic, last in self.sent.items():
            assert last == self.told(topic), topic


RoutesAgainstModel.TestCase.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestRoutesAgainstModel = RoutesAgainstModel.TestCase
