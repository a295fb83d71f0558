"""Nothing acknowledged is lost, whatever the clocks do, and where two are needed, no death of one stops the group:
every reachable state of three brokers' logs.

No broker looks at a clock here: an old master goes on for ever, elections come at any moment, who was elected begins
however late, answers arrive late or never, brokers crash and come back with their log. All that protects the data is
the register, the epochs on the stream, that a master waits for everybody who may be in its set, and what a slave must
have before it may join.

What is confirmed counts as acknowledged, whether a sender waits for it or not: consumers may have seen it. A group
acknowledges with one broker in its set, or with two at least (``inSyncReplicas``). Where something is confirmed up to,
a broker knows from what it heard, and a crash takes that from it: so it knows less than was acknowledged.

``ELECTION_STATES=100000000 python -m tests.model.test_election_data`` visits all that the bounds below allow.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from penstock.formats.epochs import Epoch
from penstock.proto.register import NOBODY, Register, new_register
from penstock.replication.epochs import EpochHistory, common_end
from penstock.replication.master.progress import level_from
from penstock.replication.master.sync_state_set import SetRules
from tests.model.test_election_leases import Registers, without_collection

EPOCHS_MAX = int(os.environ.get("ELECTION_EPOCHS", "3"))
APPENDS_MAX = int(os.environ.get("ELECTION_APPENDS", "3"))
STATES = int(os.environ.get("ELECTION_STATES", "120000"))
Log = tuple[str, ...]
REGISTERS = Registers()
NOT_HEARD = -1
NOBODY_HEARD = (NOT_HEARD, NOT_HEARD, NOT_HEARD)


class Histories:
    """Histories as small numbers, which are quicker to compare."""

    def __init__(self) -> None:
        self._numbers: dict[EpochHistory, int] = {}
        self.known: list[EpochHistory] = []
        self.begun = functools.cache(self._begun)
        self.followed = functools.cache(self._followed)

    def number(self, history: EpochHistory) -> int:
        if history not in self._numbers:
            self._numbers[history] = len(self.known)
            self.known.append(history)
        return self._numbers[history]

    def _begun(self, number: int, epoch: int, start: int) -> int:
        return self.number(self.known[number].begin(epoch, start))

    def _followed(self, slave: int, slave_end: int, master: int, master_end: int, count: int) -> tuple[int, int]:
        """A slave's history, and the end of its log, which was cut to the common point and got ``count`` records."""
        common = common_end(self.known[master], master_end, self.known[slave], slave_end)
        end = min(min(common or 0, slave_end) + count, master_end)
        return self.number(EpochHistory(entry for entry in self.known[master].entries if entry.start <= end)), end


HISTORIES = Histories()
FIRST = HISTORIES.number(EpochHistory([Epoch(1, 0)]))


class Node(NamedTuple):
    """One broker: durable log and history; the newest epoch it knows; what it is, and what its slaves answered.

    ``confirm`` is remembered until it crashes: heard as a slave, or reached as master. ``source``: the former master,
    which has all that this one began with.
    """

    log: Log = ()
    history: int = FIRST
    known: int = 1
    acting: int = 0
    required: frozenset[int] = frozenset()
    answered: tuple[int, ...] = NOBODY_HEARD
    confirm: int = 0
    source: int = NOBODY
    elected: int | None = None  # it has read this register, and begins as its master at any moment from then on


class Answer(NamedTuple):
    epoch: int
    end: int


class State(NamedTuple):
    register: int
    nodes: tuple[Node, ...]
    answers: tuple[Answer | None, ...]  # under way, by sender * 3 + receiver
    appended: int
    acknowledged: Log
    needed: int  # so many must be in the set for anything to be acknowledged


def with_node(state: State, i: int, node: Node) -> State:
    nodes = (*state.nodes[:i], node, *state.nodes[i + 1 :])
    return State(state.register, nodes, state.answers, state.appended, state.acknowledged, state.needed)


def with_master(state: State, i: int, node: Node) -> State:
    """The same for a master, which acknowledges at once what it may."""
    end = confirmed(node, i)
    if len(node.required) < state.needed or end <= node.confirm:
        return with_node(state, i, node)
    is_new = end > len(state.acknowledged) or node.log[:end] != state.acknowledged[:end]
    acknowledged = node.log[:end] if is_new else state.acknowledged
    return with_node(state, i, node._replace(confirm=end))._replace(acknowledged=acknowledged)


def with_answer(state: State, place: int, answer: Answer | None) -> State:
    answers = (*state.answers[:place], answer, *state.answers[place + 1 :])
    return State(state.register, state.nodes, answers, state.appended, state.acknowledged, state.needed)


def confirmed(node: Node, i: int) -> int:
    """The end of what every broker that may be in the set has."""
    return min([len(node.log), *(had_by(node, j) for j in node.required if j != i)])


def had_by(node: Node, j: int) -> int:
    """The end of what ``j`` has, as its master knows."""
    start = HISTORIES.known[node.history].latest_start if j == node.source else NOT_HEARD
    return max(start, node.answered[j])


def source_of(register: Register, node: Node) -> int:
    """Whom a master that begins believes to have its whole log."""
    return register.source_of(HISTORIES.known[node.history].latest)


def must_have(node: Node) -> int:
    """What a slave must have so that its master asks that it be taken into the set."""
    return level_from(node.confirm, HISTORIES.known[node.history].latest_start)


def may_follow(node: Node, master: Node) -> bool:
    """Whether a broker follows a master: not an older one than it knows."""
    return node.known <= master.acting


def waited_for(node: Node, j: int) -> frozenset[int]:
    """Whom a master waits for before it asks that ``j`` be taken into its set."""
    return node.required | {j}


def may_let_go(after: frozenset[int], needed: int) -> bool:
    """Whether a master may ask for a set that is smaller than before."""
    return len(after) >= SetRules(needed, needed).smallest


def electable(state: State) -> frozenset[int]:
    """Who may be elected."""
    return REGISTERS.known[state.register].sync_state_set


def followed(slave: Node, master: Node, count: int) -> Node:
    """``slave`` after a connection on which it cut its log to the common point and got ``count`` more records."""
    history, end = HISTORIES.followed(slave.history, len(slave.log), master.history, len(master.log), count)
    return slave._replace(
        log=master.log[:end],
        history=history,
        known=max(slave.known, master.acting),
        acting=0,
        confirm=min(max(slave.confirm, master.confirm), end),
        elected=None,
    )


def begun(node: Node, register: Register) -> Node:
    """A broker that begins as the master of ``register``, which may have changed since it was read."""
    return node._replace(
        history=HISTORIES.begun(node.history, register.epoch, len(node.log)),
        acting=register.epoch,
        required=register.sync_state_set,
        answered=NOBODY_HEARD,
        source=source_of(register, node),
        elected=None,
    )


def steps(state: State) -> Iterator[tuple[str, State]]:
    register = REGISTERS.known[state.register]
    if register.epoch < EPOCHS_MAX:
        for candidate in electable(state):
            yield f"{candidate} is elected", state._replace(register=REGISTERS.elected(state.register, candidate))
    for place, answer in enumerate(state.answers):
        if answer is not None:
            sender, i = divmod(place, 3)
            node = state.nodes[i]
            if node.acting == answer.epoch:
                ends = [*node.answered]
                ends[sender] = max(ends[sender], answer.end)
                heard = with_master(state, i, node._replace(answered=tuple(ends)))
                yield f"{i} hears that {sender} has {answer.end}", with_answer(heard, place, None)
    for i, node in enumerate(state.nodes):
        if register.master_id == i and register.epoch > node.known:
            learned = node._replace(known=register.epoch, acting=0, elected=state.register)
            yield f"{i} learns that it is elected", with_node(state, i, learned)
        if node.elected is not None:
            yield f"{i} begins", with_master(state, i, begun(node, REGISTERS.known[node.elected]))
        if node.acting or node.confirm:
            yield f"{i} crashes", with_node(state, i, node._replace(acting=0, confirm=0))
        if node.acting:
            yield from master_steps(state, i)


def master_steps(state: State, i: int) -> Iterator[tuple[str, State]]:
    node, register = state.nodes[i], REGISTERS.known[state.register]
    if state.appended < APPENDS_MAX:
        record = f"{node.acting}.{state.appended}"
        appended = with_master(state, i, node._replace(log=(*node.log, record)))
        yield f"{i} appends", appended._replace(appended=state.appended + 1)
    for j in range(3):
        other = state.nodes[j]
        if j == i:
            continue
        if may_follow(other, node) and other.acting != node.acting:
            for count in (0, 1):
                follower = followed(other, node, count)
                sent = with_node(state, j, follower)
                yield (
                    f"{j} follows {i}, {count} more",
                    with_answer(sent, j * 3 + i, Answer(node.acting, len(follower.log))),
                )
        if (register.master_id, register.epoch) == (i, node.acting):
            if j in register.sync_state_set:
                after = register.sync_state_set - {j}
                if not may_let_go(after, state.needed):
                    continue
            elif node.answered[j] >= must_have(node):
                union = waited_for(node, j)
                if union != node.required:
                    yield f"{i} waits for {j} too", with_master(state, i, node._replace(required=union))
                    continue
                after = register.sync_state_set | {j}
            else:
                continue
            unheard = state._replace(register=REGISTERS.with_set(state.register, after))
            yield f"{i} changes {j}, unheard", unheard
            yield f"{i} changes {j}", with_master(unheard, i, node._replace(required=after))


def problem(state: State) -> str:
    """What is wrong with ``state``: the newest master that has begun must have everything acknowledged, and so must
    everybody who may be elected in its place; of any two brokers that have it, one may be elected.
    """
    latest = max([HISTORIES.known[node.history].latest for node in state.nodes])
    for node in state.nodes:
        if node.acting == latest and node.log[: len(state.acknowledged)] != state.acknowledged:
            return f"acknowledged {state.acknowledged}, the master of epoch {latest} has {node.log}"
    members = REGISTERS.known[state.register].sync_state_set
    whole = {i for i, node in enumerate(state.nodes) if node.log[: len(state.acknowledged)] == state.acknowledged}
    if members - whole:
        return f"acknowledged {state.acknowledged}, and {sorted(members - whole)} may be elected without it"
    if state.needed > 1 and len(whole - members) > 1:
        return f"{whole - members} have everything, and only {sorted(members)} may be elected"
    return ""


def without_the_dead(state: State) -> State:
    """``state`` without what nobody will ever look at again, so that states which differ in nothing else are one."""
    nodes = state.nodes
    for i, node in enumerate(nodes):
        if not node.acting and (node.required or node.answered != NOBODY_HEARD):
            nodes = (
                *nodes[:i],
                node._replace(required=frozenset(), answered=NOBODY_HEARD, source=NOBODY),
                *nodes[i + 1 :],
            )
    answers = state.answers
    for place, answer in enumerate(answers):
        if answer is not None and answer.epoch != nodes[place % 3].acting:
            answers = (*answers[:place], None, *answers[place + 1 :])
    return State(state.register, nodes, answers, state.appended, state.acknowledged, state.needed)


def beginnings() -> Iterator[State]:
    """Broker 0 is master: of empty logs, where one or two are needed; or two are, and it let broker 2 go before it
    acknowledged a record.

    The last one is on the way from the one before, too far for every state between to be visited in a test.
    """
    first = new_register("c", "a", 0, 0)
    whole = replace(first, sync_state_set=frozenset((0, 1, 2)))
    master = Node(acting=1, required=whole.sync_state_set)
    for needed in (1, 2):
        yield State(REGISTERS.number(whole), (master, Node(), Node()), (None,) * 9, 0, (), needed)
    smaller, log = replace(first, sync_state_set=frozenset((0, 1))), ("1.0",)
    master = Node(log, acting=1, required=smaller.sync_state_set, answered=(NOT_HEARD, 1, NOT_HEARD), confirm=1)
    yield State(REGISTERS.number(smaller), (master, Node(log), Node()), (None,) * 9, 1, log, 2)


@without_collection()
def explore(states_max: int) -> tuple[int, list[str]]:
    """Visit states, breadth first; (how many, the shortest way to a loss if there is one)."""
    layer = list(beginnings())
    came: dict[State, tuple[State, str] | None] = dict.fromkeys(layer)
    while layer and len(came) < states_max:
        following = []
        for state in layer:
            for name, reached in steps(state):
                after = without_the_dead(reached)
                if after in came:
                    continue
                came[after] = (state, name)
                if wrong := problem(after):
                    return len(came), [*way_to(after, came), wrong]
                following.append(after)
        layer = following
    return len(came), []


def way_to(state: State, came: dict[State, tuple[State, str] | None]) -> list[str]:
    way: list[str] = []
    while (before := came[state]) is not None:
        state, name = before
        way.append(name)
    way.append(f"set {sorted(REGISTERS.known[state.register].sync_state_set)}, {state.needed} needed")
    return way[::-1]


class LaxRegisters(Registers):
    """Anybody may be elected: as a member of the set, which the candidate joins by it."""

    def _elected(self, number: int, candidate: int) -> int:
        before = self.known[number]
        joined = replace(before, sync_state_set=before.sync_state_set | {candidate})
        return self.number(joined.elected(candidate))


class ShrinkingRegisters(Registers):
    """The former master leaves the set, unless it is elected again."""

    def _elected(self, number: int, candidate: int) -> int:
        before = self.known[number]
        after = before.elected(candidate)
        return self.number(replace(after, sync_state_set=before.sync_state_set - {before.master_id} | {candidate}))


def test_nothing_acknowledged_is_lost() -> None:
    visited, way = explore(STATES)
    assert not way, f"after {visited} states: {way}"


@pytest.mark.parametrize(
    "name",
    [
        "too few waited for",
        "old epoch followed",
        "union not waited for",
        "only what was heard must be had",
        "one that was let go is elected",
        "an election shrinks the set",
        "too few are left in the set",
        "whoever was master before is believed to have the log",
        "the former master is believed to have what came after it",
    ],
)
def test_a_broken_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each rule is for: without it an acknowledged record is lost, or one broker's death stops the group."""
    module = sys.modules[__name__]
    if name == "too few waited for":

        def any_other(node: Node, i: int) -> int:
            return min(len(node.log), max([node.answered[j] for j in range(3) if j != i]))

        monkeypatch.setattr(module, "confirmed", any_other)
    elif name == "old epoch followed":
        monkeypatch.setattr(module, "may_follow", lambda node, master: True)
    elif name == "only what was heard must be had":
        monkeypatch.setattr(module, "must_have", lambda node: node.confirm)
    elif name == "one that was let go is elected":
        monkeypatch.setattr(module, "electable", lambda state: range(3))
        monkeypatch.setattr(module, "REGISTERS", LaxRegisters())
    elif name == "an election shrinks the set":
        monkeypatch.setattr(module, "REGISTERS", ShrinkingRegisters())
    elif name == "too few are left in the set":
        monkeypatch.setattr(module, "may_let_go", lambda after, needed: True)
    elif name == "whoever was master before is believed to have the log":
        monkeypatch.setattr(module, "source_of", lambda register, node: register.former_id)
    elif name == "the former master is believed to have what came after it":
        monkeypatch.setattr(module, "had_by", lambda node, j: len(node.log) if j == node.source else node.answered[j])
    else:
        monkeypatch.setattr(module, "waited_for", lambda node, j: node.required)
    _, way = explore(5 * STATES)
    assert way


if __name__ == "__main__":
    print(*explore(STATES))
