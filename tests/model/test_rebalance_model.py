"""Members that hear of each other late, and a broker that grants claims: nobody shares a queue, all agree at last."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.consume.groups import Changes, Groups
from penstock.client.consume.group.rebalance import STRATEGIES, allocate
from penstock.client.message import MessageQueue

QUEUES = [MessageQueue("T", "room@broker-a", index) for index in range(7)]
CLIENTS = [f"room@{index}" for index in range(5)]


class Member:
    """Wants what it computes from the newest member list it has read."""

    def __init__(self) -> None:
        self.unread: list[list[str]] = []
        self.wanted: set[MessageQueue] = set()
        self.granted: set[MessageQueue] = set()
        self.working: set[MessageQueue] = set()


class RebalanceMachine(RuleBasedStateMachine):
    """Events reach members in order, each at a time that Hypothesis chooses."""

    @initialize(name=st.sampled_from(sorted(STRATEGIES)))
    def begin(self, name: str) -> None:
        self.strategy = STRATEGIES[name]
        self.groups = Groups()
        self.members: dict[str, Member] = {}
        self.ids: dict[str, int] = {}
        self.next_id = 1

    @rule(client=st.sampled_from(CLIENTS))
    def join(self, client: str) -> None:
        if client not in self.members:
            self.ids[client], self.next_id = self.next_id, self.next_id + 1
            self.members[client] = Member()
            self.publish(self.groups.join(self.ids[client], "g", client, {"T": "*"}))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.members)))
        del self.members[client]
        self.publish(self.groups.end(self.ids.pop(client)))

    @precondition(lambda self: any(member.unread for member in self.members.values()))
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        self.read_one(data.draw(st.sampled_from(sorted(c for c, m in self.members.items() if m.unread))))

    @precondition(lambda self: any(member.working - member.wanted for member in self.members.values()))
    @rule(data=st.data())
    def finish_work(self, data: st.DataObject) -> None:
        """A member ends the work on a queue that is not its own any more, and only then releases it."""
        client = data.draw(st.sampled_from(sorted(c for c, m in self.members.items() if m.working - m.wanted)))
        self.release_unwanted(client)

    def read_one(self, client: str) -> None:
        member = self.members[client]
        ids = member.unread.pop(0)
        member.wanted = allocate(self.strategy, client, QUEUES, ids)
        for queue in sorted(member.wanted):
            self.publish(self.groups.claim(self.ids[client], queue.topic, [queue.queue_id]))
        for queue in sorted(set(QUEUES) - member.wanted - member.working):  # waiting claims end at once
            self.publish(self.groups.release(self.ids[client], queue.topic, [queue.queue_id]))

    def release_unwanted(self, client: str) -> None:
        member = self.members[client]
        for queue in sorted(member.working - member.wanted):
            member.working.discard(queue)
            self.publish(self.groups.release(self.ids[client], queue.topic, [queue.queue_id]))

    def publish(self, changes: Changes) -> None:
        by_id = {session_id: client for client, session_id in self.ids.items()}
        for grant in changes.grants:
            queue = MessageQueue(grant.topic, QUEUES[0].broker_name, grant.queue_id)
            self.members[by_id[grant.session_id]].working.add(queue)
        if changes.groups:
            for member in self.members.values():
                member.unread.append(self.groups.members("g")[1])

    @invariant()
    def no_queue_is_worked_on_by_two(self) -> None:
        working = [queue for member in self.members.values() for queue in member.working]
        assert len(working) == len(set(working))

    def teardown(self) -> None:
        """When everybody has heard everything and finished, each queue is worked on by the member it falls to."""
        if not getattr(self, "members", None):
            return
        while any(member.unread for member in self.members.values()):
            for client in [client for client, member in self.members.items() if member.unread]:
                self.read_one(client)
        for client in self.members:
            self.release_unwanted(client)
        for client, member in self.members.items():
            assert member.working == allocate(self.strategy, client, QUEUES, list(self.members))
        assert {queue for member in self.members.values() for queue in member.working} == set(QUEUES)


TestRebalance = RebalanceMachine.TestCase
TestRebalance.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
