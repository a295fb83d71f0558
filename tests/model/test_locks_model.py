"""Orderly members under any order of breaks, silences, handovers and failovers: nobody's work meets another's."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.consume.groups import Changes, Groups
from penstock.broker.consume.locks import SILENCE_S, Locks

LOCK_S = 10.0
CLIENTS = ("a", "b", "c")
QUEUES = (0, 1)


@dataclass
class Broker:
    """Grants as a broker does; one of them is master."""

    is_acting: bool = False
    heard_s: dict[int, float] = field(default_factory=dict)  # living sessions

    def __post_init__(self) -> None:
        self.locks = Locks(lambda: self.is_acting)
        self.groups = Groups(self.locks)


@dataclass
class Member:
    """What a client knows: its session, its lease, and what it was granted, each with the lease of that session."""

    client_id: str
    broker: Broker | None = None
    session_id: int = 0
    leases: dict[int, float] = field(default_factory=dict)  # by session
    granted: dict[int, int] = field(default_factory=dict)  # queue -> session
    busy_until_s: dict[int, float] = field(default_factory=dict)  # queue -> when work ends


class LocksMachine(RuleBasedStateMachine):
    """Real groups and locks at two brokers; members keep to the client's rules."""

    @initialize()
    def begin(self) -> None:
        self.now_s = 100.0
        self.brokers = (Broker(is_acting=True), Broker())
        self.members = {name: Member(name) for name in CLIENTS}
        self.owners: dict[int, Member] = {}
        self.next_id = 1

    @rule(seconds=st.sampled_from((0.2, 1.0, 2.5, 9.0)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for broker in self.brokers:
            for session_id, heard_s in list(broker.heard_s.items()):
                if self.now_s - heard_s >= SILENCE_S:
                    self.end(broker, session_id)
            for session_id in broker.heard_s:
                self.note(broker.groups.look_again(session_id, self.now_s))
            broker.locks.forget_old(self.now_s)

    @rule(name=st.sampled_from(CLIENTS), at=st.sampled_from((0, 1)), wanted=st.sets(st.sampled_from(QUEUES)))
    def connect(self, name: str, at: int, wanted: set[int]) -> None:
        member, broker = self.members[name], self.brokers[at]
        session_id, self.next_id = self.next_id, self.next_id + 1
        held = {}
        for queue, granted in member.granted.items():
            until_s = member.leases[granted] + LOCK_S
            if self.now_s < until_s:
                held[queue] = until_s
        member.granted = {queue: granted for queue, granted in member.granted.items() if queue in held}
        former = broker.groups.superseded("g", name)
        self.note(broker.groups.join(session_id, "g", name, {"T": "*"}, LOCK_S, self.now_s))
        broker.heard_s.pop(former or 0, None)
        member.broker, member.session_id, self.owners[session_id] = broker, session_id, member
        member.leases[session_id] = self.now_s + SILENCE_S
        broker.heard_s[session_id] = self.now_s
        for queue, until_s in held.items():
            self.note(broker.groups.claim(session_id, "T", [queue], self.now_s, until_s))
        self.note(broker.groups.claim(session_id, "T", sorted(wanted - held.keys()), self.now_s))

    @rule(name=st.sampled_from(CLIENTS))
    def beat(self, name: str) -> None:
        member = self.members[name]
        broker, session_id = member.broker, member.session_id
        if broker is None or session_id not in broker.heard_s:
            return
        if broker.groups.has_locks(session_id) and not broker.is_acting:
            self.end(broker, session_id)
            return
        broker.heard_s[session_id] = self.now_s
        member.leases[session_id] = self.now_s + SILENCE_S

    @rule(name=st.sampled_from(CLIENTS))
    def break_stream(self, name: str) -> None:
        """The broker notices; the member goes by its lease."""
        member = self.members[name]
        if member.broker is not None and member.session_id in member.broker.heard_s:
            self.end(member.broker, member.session_id)

    @rule(name=st.sampled_from(CLIENTS), queue=st.sampled_from(QUEUES), seconds=st.floats(0.1, LOCK_S))
    def work(self, name: str, queue: int, seconds: float) -> None:
        member = self.members[name]
        may_begin = member.granted.get(queue) == member.session_id and self.now_s < member.leases[member.session_id]
        if may_begin and member.busy_until_s.get(queue, 0.0) <= self.now_s:
            member.busy_until_s[queue] = self.now_s + seconds

    @rule(name=st.sampled_from(CLIENTS), queue=st.sampled_from(QUEUES))
    def release(self, name: str, queue: int) -> None:
        member = self.members[name]
        if member.busy_until_s.get(queue, 0.0) > self.now_s or member.broker is None:
            return
        member.granted.pop(queue, None)
        if member.session_id in member.broker.heard_s:
            self.note(member.broker.groups.release(member.session_id, "T", [queue], self.now_s))

    @precondition(lambda self: any(broker.is_acting for broker in self.brokers))
    @rule(ends_sessions=st.booleans())
    def fail_over(self, ends_sessions: bool) -> None:
        former, later = self.brokers if self.brokers[0].is_acting else self.brokers[::-1]
        former.is_acting, later.is_acting = False, True
        if ends_sessions:
            for session_id in list(former.heard_s):
                self.end(former, session_id)
        later.locks.begin(["g"], self.now_s)

    def end(self, broker: Broker, session_id: int) -> None:
        del broker.heard_s[session_id]
        self.note(broker.groups.end(session_id, self.now_s))

    def note(self, changes: Changes) -> None:
        for grant in changes.grants:
            member = self.owners[grant.session_id]
            if member.session_id == grant.session_id:
                member.granted[grant.queue_id] = grant.session_id

    @invariant()
    def nobodys_work_meets_anothers(self) -> None:
        for queue in QUEUES:
            busy = [each.client_id for each in self.members.values() if each.busy_until_s.get(queue, 0.0) > self.now_s]
            assert len(busy) <= 1, f"queue {queue} at {self.now_s}"


TestLocks = LocksMachine.TestCase
TestLocks.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
