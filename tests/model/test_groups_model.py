"""Groups of consumers under any order of joins, claims, releases and ends."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.consume.groups import Changes, Groups

GROUPS = ("g1", "g2")
CLIENTS = ("a", "b", "c", "d")
QUEUES = [("T", 0), ("T", 1), ("U", 0)]


class GroupMachine(RuleBasedStateMachine):
    """Checks against a model: per group and queue a line of sessions, the first of which holds the queue."""

    @initialize()
    def begin(self) -> None:
        self.groups = Groups()
        self.next_id = 1
        self.sessions: dict[int, tuple[str, str]] = {}
        self.lines: dict[tuple[str, str, int], list[int]] = {}
        self.told: set[tuple[int, str, int]] = set()  # grants that were announced and stand
        self.generations: dict[str, int] = {}

    @rule(group=st.sampled_from(GROUPS), client=st.sampled_from(CLIENTS))
    def join(self, group: str, client: str) -> None:
        session_id, self.next_id = self.next_id, self.next_id + 1
        former = next((known for known, who in self.sessions.items() if who == (group, client)), None)
        assert self.groups.superseded(group, client) == former
        if former is not None:
            self.forget(former)
        self.sessions[session_id] = (group, client)
        changes = self.groups.join(session_id, group, client, {"T": "*"})
        self.note(changes)
        assert changes.groups == [group]
        self.expect_new_generation(group)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), chosen=st.sets(st.sampled_from(QUEUES), min_size=1))
    def claim(self, data: st.DataObject, chosen: set[tuple[str, int]]) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.sessions)))
        group = self.sessions[session_id][0]
        for topic, queue_id in sorted(chosen):
            line = self.lines.setdefault((group, topic, queue_id), [])
            if session_id not in line:
                line.append(session_id)
            self.note(self.groups.claim(session_id, topic, [queue_id]))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), queue=st.sampled_from(QUEUES))
    def release(self, data: st.DataObject, queue: tuple[str, int]) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.sessions)))
        line = self.lines.get((self.sessions[session_id][0], *queue), [])
        if session_id in line:
            line.remove(session_id)
        self.told.discard((session_id, *queue))
        self.note(self.groups.release(session_id, queue[0], [queue[1]]))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.sessions)))
        group = self.sessions[session_id][0]
        self.forget(session_id)
        changes = self.groups.end(session_id)
        self.note(changes)
        assert changes.groups == [group]
        self.expect_new_generation(group)

    @rule()
    def end_nobody(self) -> None:
        assert self.groups.end(10_000_000) == Changes()

    def forget(self, session_id: int) -> None:
        del self.sessions[session_id]
        for line in self.lines.values():
            if session_id in line:
                line.remove(session_id)
        self.told = {grant for grant in self.told if grant[0] != session_id}

    def note(self, changes: Changes) -> None:
        for grant in changes.grants:
            assert grant not in self.told, "granted twice"
            self.told.add(tuple(grant))

    def expect_new_generation(self, group: str) -> None:
        generation, _ = self.groups.members(group)
        assert generation > self.generations.get(group, 0)
        self.generations[group] = generation

    @invariant()
    def the_first_in_line_holds_and_was_told(self) -> None:
        for (group, topic, queue_id), line in self.lines.items():
            holder = line[0] if line else None
            assert self.groups.holder(group, topic, queue_id) == holder
            told = [
                grant[0]
                for grant in self.told
                if grant[1:] == (topic, queue_id) and self.sessions[grant[0]][0] == group
            ]
            assert told == ([holder] if holder is not None else []), "one holder, told once; a wanted queue has one"

    @invariant()
    def members_are_the_living_sessions(self) -> None:
        for group in GROUPS:
            living = sorted(client for name, client in self.sessions.values() if name == group)
            assert self.groups.members(group)[1] == living

    @invariant()
    def every_session_knows_what_it_holds(self) -> None:
        for session_id, (group, _) in self.sessions.items():
            held = sorted(
                (t, q) for (name, t, q), line in self.lines.items() if name == group and line[:1] == [session_id]
            )
            assert self.groups.held_by(session_id) == held

    @invariant()
    def every_claim_is_counted(self) -> None:
        assert self.groups.claims == sum(map(len, self.lines.values()))


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
