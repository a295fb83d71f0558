"""What a client knows of broker groups against what its nameserver knows, whatever topics and groups come and go."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.client.cluster.connections import Connections
from penstock.client.cluster.directory import Directory
from penstock.nameserver.routes import Change, RouteTable
from penstock.nameserver.watches import Watcher, Watches
from penstock.proto.wire.nameserver_pb2 import BrokerReport, RouteUpdate, ShardView
from tests.support.broker.registrations import registration, topic_config

STAYS = "broker-0"  # a nameserver that knows nobody takes nothing away
GROUPS = ["broker-a", "broker-b", "broker-c"]
TOPICS = ["T", "U", "V"]


class DirectoryMachine(RuleBasedStateMachine):
    """One nameserver's table, one client that watches all topics, and a delivery of routes after each change."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.watches = RouteTable(), Watches()
        self.watcher: Watcher = self.watches.open()
        self.sessions: dict[str, int] = {}
        self.last_session = 0
        self.connections = Connections("127.0.0.1:1")
        self.directory = Directory(self.connections)
        self.come(STAYS, set())
        self.watches.add(self.watcher, TOPICS)

    def teardown(self) -> None:
        self.directory.close()
        self.connections.close()

    def note(self, change: Change) -> None:
        self.watches.publish(change, self.table)

    @rule(name=st.sampled_from(GROUPS), topics=st.sets(st.sampled_from(TOPICS)))
    def come(self, name: str, topics: set[str]) -> None:
        self.last_session += 1
        self.sessions[name] = self.last_session
        self.note(self.table.register(self.last_session, registration(name, topics=tuple(sorted(topics))), 0.0))

    @rule(name=st.sampled_from(GROUPS))
    def go(self, name: str) -> None:
        if name in self.sessions:
            self.note(self.table.unregister(self.sessions.pop(name)))

    @rule(name=st.sampled_from([STAYS, *GROUPS]), topic=st.sampled_from(TOPICS), has=st.booleans())
    def change_topic(self, name: str, topic: str, has: bool) -> None:
        if name in self.sessions:
            changes = BrokerReport.TopicChanges(
                updated=[topic_config(topic)] if has else [], removed=[] if has else [topic]
            )
            self.note(self.table.topics_changed(self.sessions[name], changes, 0.0))

    @rule(count=st.integers(1, len(TOPICS)))
    def deliver(self, count: int) -> None:
        """Send some of the routes that have changed: each as it is now, the others later."""
        taken = self.watcher.take(count)
        if taken:
            self.directory._on_update(RouteUpdate(routes=[self.table.route(topic) for topic in taken]))

    @invariant()
    def knows_the_groups_of_its_topics(self) -> None:
        if self.watcher.pending:
            return
        wanted: dict[str, ShardView] = {}
        for topic in TOPICS:
            wanted |= {shard.broker_name: shard for shard in self.table.route(topic).shards}
        for name in (STAYS, *GROUPS):
            assert self.directory._shards.get(name) == wanted.get(name), name


TestDirectory = DirectoryMachine.TestCase
TestDirectory.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
