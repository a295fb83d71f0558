"""At most one broker of a group acts as master at any moment: every reachable state of three brokers.

The scheduler is an adversary. Between two ticks of real time any broker may do any step or none, so a frozen process
is one that does none; messages are lost (never delivered) or late; the coordinator store is away (never asked); the
nameserver elects whom it likes among those whom the register allows; brokers crash and forget whom they answered.
Clocks run 10 % slow or 10 % fast. Times are kept as what is left of them on the clock of the broker that counts
them, so the number of states is finite, and all of them are visited.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from penstock.proto.register import Register, new_register
from penstock.replication import leases
from penstock.replication.leases import MasterLease, begins_at

LEASE = 22.0  # two ticks of a clock that is 10 % fast; a master may count on 18: two ticks of one 10 % slow
SLOW, FAST = 9.0, 11.0
EPOCHS_MAX = 3
NOTHING: tuple[float | None, ...] = (None, None, None)


class Message(NamedTuple):
    """A heartbeat, or the answer to it; ``age`` since its sending, on the master's clock."""

    epoch: int
    age: float
    is_answer: bool


class Read(NamedTuple):
    """A question for the register; ``age`` since it was asked, and what it found once it has been carried out."""

    age: float
    found: int | None


class Node(NamedTuple):
    """One broker. ``confirmed``: age of what each other broker answered last, None: nothing that counts."""

    log_epoch: int = 0
    known: int = 0
    acting: int = 0  # the epoch in which it is master
    elected: int | None = None  # it is to begin when ``wait`` is over
    wait: float = 0.0
    required: frozenset[int] = frozenset()
    confirmed: tuple[float | None, ...] = NOTHING
    coordinator: float | None = None
    read: Read | None = None


class State(NamedTuple):
    register: int
    nodes: tuple[Node, Node, Node]
    messages: tuple[Message | None, ...]  # by sender * 3 + receiver; an answer takes the place of what it answers


def lease_of(node: Node, own_id: int) -> MasterLease:
    lease = MasterLease(own_id, node.required, lease_s=LEASE)
    for other, age in enumerate(node.confirmed):
        if age is not None:
            lease.on_member(other, -age)
    if node.coordinator is not None:
        lease.on_coordinator(-node.coordinator)
    return lease


@functools.cache
def is_acting(node: Node, own_id: int) -> bool:
    return node.acting > 0 and lease_of(node, own_id).is_valid(0.0)


def stepped_down(node: Node) -> Node:
    return node._replace(acting=0, elected=None, wait=0.0, required=frozenset(), confirmed=NOTHING, coordinator=None)


def older(age: float | None, by: float) -> float | None:
    return None if age is None or age + by >= LEASE else age + by


def tick(state: State, rates: tuple[float, ...]) -> State:
    first, second, third = (aged(node, rate) for node, rate in zip(state.nodes, rates, strict=True))
    messages = []
    for place, message in enumerate(state.messages):
        if message is not None:
            sender = place % 3 if message.is_answer else place // 3
            age = older(message.age, rates[sender])
            message = Message(message.epoch, age, message.is_answer) if age is not None else None
        messages.append(message)
    return State(state.register, (first, second, third), tuple(messages))


@functools.cache
def aged(node: Node, by: float) -> Node:
    """A broker after so much of its clock's time: there are far fewer brokers than states."""
    age = None if node.read is None else older(node.read.age, by)
    return node._replace(
        wait=max(0.0, node.wait - by),
        confirmed=tuple(older(each, by) for each in node.confirmed),
        coordinator=older(node.coordinator, by),
        read=None if node.read is None or age is None else Read(age, node.read.found),
    )


def with_node(state: State, i: int, node: Node) -> State:
    nodes = list(state.nodes)
    nodes[i] = node
    return State(state.register, (nodes[0], nodes[1], nodes[2]), state.messages)


def with_message(state: State, place: int, message: Message | None) -> State:
    messages = list(state.messages)
    messages[place] = message
    return State(state.register, state.nodes, tuple(messages))


def receive(state: State, place: int) -> State | None:
    """Broker ``place % 3`` gets what is under way to it from ``place // 3``."""
    message = state.messages[place]
    assert message is not None
    sender, i = divmod(place, 3)
    node = state.nodes[i]
    taken = with_message(state, place, None)
    if message.is_answer:
        if node.acting != message.epoch:
            return None
        confirmed = list(node.confirmed)
        known = confirmed[sender]
        confirmed[sender] = message.age if known is None else min(known, message.age)
        return with_node(taken, i, node._replace(confirmed=tuple(confirmed)))
    if message.epoch < node.known:
        return None
    follower = stepped_down(node)._replace(known=message.epoch)
    back = i * 3 + sender
    return with_message(with_node(taken, i, follower), back, Message(message.epoch, message.age, True))


def learn(state: State, i: int) -> State:
    """Broker ``i`` gets the answer of the coordinator."""
    node = state.nodes[i]
    assert node.read is not None
    number, age = node.read.found, node.read.age
    assert number is not None
    found = REGISTERS.known[number]
    node = node._replace(read=None)
    if found.master_id != i:
        return with_node(state, i, stepped_down(node) if node.acting and found.epoch > node.acting else node)
    if node.acting == found.epoch:
        asked = age if node.coordinator is None else min(age, node.coordinator)
        return with_node(state, i, node._replace(coordinator=asked))
    if found.epoch < node.known or (node.elected is not None and REGISTERS.known[node.elected].epoch >= found.epoch):
        return with_node(state, i, node)
    if found.epoch == node.log_epoch:
        return with_node(state, i, node)  # it acted in this epoch before a crash: that is over for good
    wait = begins_at(found, i, 0.0, began=node.log_epoch, lease_s=LEASE)
    waiting = stepped_down(node)._replace(known=found.epoch, elected=number, wait=wait, coordinator=age)
    return with_node(state, i, waiting)


def steps(state: State, *, late: bool) -> Iterator[tuple[str, State]]:
    """Whatever may happen next, besides a tick.

    Without ``late`` a heartbeat is answered, and a register read, at the moment of asking, or never. That is the worst
    that can happen: a master's lease is the longer, the less time goes by between.
    """
    register = REGISTERS.known[state.register]
    for place, message in enumerate(state.messages):
        if message is not None:
            after = receive(state, place)
            if after is not None:
                yield f"{place % 3} receives of {place // 3} {message}", after
    if register.epoch < EPOCHS_MAX:
        for candidate in register.sync_state_set:
            if candidate != register.master_id or state.nodes[candidate].acting == 0:
                yield f"{candidate} is elected", state._replace(register=REGISTERS.elected(state.register, candidate))
    for i, node in enumerate(state.nodes):
        if node.acting:
            for j in range(3):
                if j == i or state.messages[i * 3 + j] is not None:
                    continue
                sent = with_message(state, i * 3 + j, Message(node.acting, 0.0, False))
                if late:
                    yield f"{i} sends to {j}", sent
                elif (received := receive(sent, i * 3 + j)) and (answered := receive(received, j * 3 + i)):
                    yield f"{i} is answered by {j}", answered
            yield from set_changes(state, i)
        if node.elected is not None and node.wait <= 0:
            mine = REGISTERS.known[node.elected]
            began = node._replace(
                acting=mine.epoch,
                log_epoch=mine.epoch,
                required=mine.sync_state_set,
                elected=None,
                confirmed=NOTHING,
            )
            yield f"{i} begins", with_node(state, i, began)
        if node.read is None:
            yield f"{i} asks", with_node(state, i, node._replace(read=Read(0.0, None if late else state.register)))
        elif node.read.found is None:
            yield f"{i} is read for", with_node(state, i, node._replace(read=Read(node.read.age, state.register)))
        else:
            yield f"{i} learns", learn(state, i)
        if node.acting or node.elected:
            crashed = Node(log_epoch=node.log_epoch, known=node.log_epoch)
            yield f"{i} crashes", with_node(state, i, crashed)


def set_changes(state: State, i: int) -> Iterator[tuple[str, State]]:
    """A master takes a broker out of its set, or in; it may or may not hear that this was done."""
    node, register = state.nodes[i], REGISTERS.known[state.register]
    if (register.master_id, register.epoch) != (i, node.acting):
        return
    for j in range(3):
        if j == i:
            continue
        union = node.required if j in register.sync_state_set else node.required | {j}
        after = register.sync_state_set ^ {j}
        changed = REGISTERS.with_set(state.register, after)
        unheard = with_node(state, i, node._replace(required=union))._replace(register=changed)
        yield f"{i} changes {j}, unheard", unheard
        heard = with_node(state, i, node._replace(required=after))._replace(register=changed)
        yield f"{i} changes {j}", heard


class Registers:
    """Registers as small numbers, which are quicker to compare; versions without end would be states without end."""

    def __init__(self) -> None:
        self._numbers: dict[Register, int] = {}
        self.known: list[Register] = []
        self.elected = functools.cache(self._elected)
        self.with_set = functools.cache(self._with_set)

    def number(self, register: Register) -> int:
        register = replace(register, version=1)
        if register not in self._numbers:
            self._numbers[register] = len(self.known)
            self.known.append(register)
        return self._numbers[register]

    def _elected(self, number: int, candidate: int) -> int:
        return self.number(self.known[number].elected(candidate))

    def _with_set(self, number: int, members: frozenset[int]) -> int:
        register = self.known[number]
        return self.number(register.with_set(register.master_id, register.epoch, 1, members))


REGISTERS = Registers()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """States hold each other in no circle, and there are many to look through."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@without_collection()
def explore(rates: tuple[float, ...], *, late: bool = False, states_max: int = 10**9) -> tuple[int, list[str]]:
    """Visit every state, breadth first; (how many, the shortest way to two acting masters if there is one)."""
    register = replace(new_register("c", "a", 0, 0), sync_state_set=frozenset((0, 1, 2)))
    master = Node(log_epoch=1, known=1, acting=1, required=register.sync_state_set)
    slave = Node(log_epoch=1, known=1)
    first = State(REGISTERS.number(register), (master, slave, slave), (None,) * 9)
    came: dict[State, tuple[State, str] | None] = {first: None}
    layer = [first]
    while layer and len(came) < states_max:
        following = []
        for state in layer:
            for name, after in itertools.chain(steps(state, late=late), [("tick", tick(state, rates))]):
                if after in came:
                    continue
                came[after] = (state, name)
                if sum(is_acting(node, i) for i, node in enumerate(after.nodes)) > 1:
                    return len(came), way_to(after, came)
                following.append(after)
        layer = following
    return len(came), []


def way_to(state: State, came: dict[State, tuple[State, str] | None]) -> list[str]:
    way: list[str] = []
    while (before := came[state]) is not None:
        state, name = before
        way.append(name)
    return way[::-1]


STATES = int(os.environ.get("ELECTION_STATES", "8000"))
"""Per combination of clocks; breadth first, so the shortest ways to a mistake come first."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("rates", [(SLOW, FAST, FAST), (FAST, SLOW, FAST), (SLOW, FAST, SLOW)])
def test_two_masters_never_act_at_once(rates: tuple[float, ...], late: bool) -> None:
    visited, way = explore(rates, late=late, states_max=STATES)
    assert not way, f"after {visited} states: {way}"
    assert visited >= STATES


def no_drift(lease_s: float) -> float:
    return lease_s


def no_wait(register: Register, own_id: int, learned_at: float, *, began: int, lease_s: float) -> float:
    return learned_at + lease_s / 2


def elected_again_waits_for_nobody(
    register: Register, own_id: int, learned_at: float, *, began: int, lease_s: float
) -> float:
    return leases.begins_at(register, own_id, learned_at, began=register.epoch - 1, lease_s=lease_s)


def any_member(self: MasterLease) -> float:
    return max(max(self._members.values(), default=math.inf), self._coordinator) + self._share_s


@pytest.mark.parametrize(
    ("owner", "name", "broken", "epochs"),
    [
        (leases, "master_share_s", no_drift, 2),
        (sys.modules[__name__], "begins_at", no_wait, 2),
        (sys.modules[__name__], "begins_at", elected_again_waits_for_nobody, EPOCHS_MAX),
        (MasterLease, "until", property(any_member), EPOCHS_MAX),
    ],
)
def test_a_broken_rule_is_found(
    owner: object, name: str, broken: object, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each rule is for: without it two masters act. One election is enough to show what the first two are for."""
    monkeypatch.setattr(owner, name, broken)
    monkeypatch.setattr(sys.modules[__name__], "EPOCHS_MAX", epochs)
    is_acting.cache_clear()
    _, way = explore((SLOW, FAST, FAST), states_max=40 * STATES)
    is_acting.cache_clear()
    assert way
