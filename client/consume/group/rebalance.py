"""Who consumes which queue: pure rules that every member of a group computes alike.

A strategy gets the member's own id, the queues of one topic and the ids of all members, queues and ids sorted, and
returns the member's queues. When the members see the same lists, every queue has at most one owner, and exactly one
unless the rule itself leaves queues out (``CONFIG``, and ``MACHINE_ROOM`` for other rooms). When their views differ
for a moment, the brokers' exclusive claims keep two members off one queue.

Source: RocketMQ AllocateMessageQueueStrategy and its implementations; the same rules to the letter, so that members
can be predicted from RocketMQ's documentation. A pluggable strategy is any callable with the signature
:data:`Strategy`; it must depend on its arguments alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.proto.errors import ConfigError

from ...message import MessageQueue

VIRTUAL_NODES = 10


Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""``strategy(client_id, queues, members)``: the queues of ``client_id``; queues and members come sorted."""


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
    """AVG: contiguous blocks; the first ``len(queues) % len(members)`` members get one queue more."""
    index = _index(client_id, members)
    if index is None:
        return []
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: queue k goes to member ``k % len(members)``."""
    index = _index(client_id, members)
    return [] if index is None else list(queues[index :: len(members)])


class ConsistentHash:
    """CONSISTENT_HASH: a ring with some points per member; a queue belongs to the next point clockwise.

    When a member joins or leaves, only its own queues move.
    """

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ConfigError(f"consistent hash with {virtual_nodes} virtual nodes: at least 1 is needed")
        self.virtual_nodes = virtual_nodes

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        if client_id not in members:
            return []
        ring = {_ring_hash(f"{member}-{node}"): member for member in members for node in range(self.virtual_nodes)}
        points = sorted(ring)
        mine = []
        for queue in queues:
            # As RocketMQ's ``MessageQueue.toString``.
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            # The ring's end is its beginning.
            point = points[bisect_left(points, _ring_hash(text)) % len(points)]
            if ring[point] == client_id:
                mine.append(queue)
        return mine


class MachineRoom:
    """MACHINE_ROOM: only queues on brokers named ``room@broker`` whose room is one of ``rooms``.

    Each member gets a block of ``len(queues) // len(members)``; what is left over goes one each to the first members.
    """

    def __init__(self, rooms: Collection[str]) -> None:
        self.rooms = frozenset(rooms)

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        index = _index(client_id, members)
        if index is None:
            return []
        near = [queue for queue in queues if self._is_near(queue)]
        share, rest = divmod(len(near), len(members))
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[index + share * len(members)])
        return mine

    def _is_near(self, queue: MessageQueue) -> bool:
        room, at, broker = queue.broker_name.partition("@")
        return bool(at) and bool(broker) and "@" not in broker and room in self.rooms


class MachineRoomNearby:
    """MACHINE_ROOM_NEARBY: a room's queues are shared by the room's members; rooms without members by everybody.

    ``room_of_queue`` and ``room_of_member`` name the room of a queue and of a client id; the defaults take what
    stands before the ``@`` of the broker's name and of the client id.
    """

    def __init__(
        self,
        inner: Strategy = average,
        *,
        room_of_queue: Callable[[MessageQueue], str] | None = None,
        room_of_member: Callable[[str], str] | None = None,
    ) -> None:
        self._inner = inner
        self._room_of_queue = room_of_queue or (lambda queue: _room(queue.broker_name, "broker"))
        self._room_of_member = room_of_member or (lambda member: _room(member, "client id"))

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        if client_id not in members:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(self._room_of_queue(queue), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in members:
            members_of.setdefault(self._room_of_member(member), []).append(member)
        own_room = self._room_of_member(client_id)
        mine = list(self._inner(client_id, queues_of.pop(own_room, []), members_of[own_room]))
        for room in sorted(queues_of):
            if room not in members_of:
                mine.extend(self._inner(client_id, queues_of[room], members))
        return mine


class Configured:
    """CONFIG: a fixed list of queues, whatever the other members are."""

    def __init__(self, queues: Collection[MessageQueue]) -> None:
        self._queues = frozenset(queues)

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        return [queue for queue in queues if queue in self._queues]


STRATEGIES: Mapping[str, Strategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": ConsistentHash(),
    "MACHINE_ROOM_NEARBY": MachineRoomNearby(),
}
"""Strategies that need no arguments, by RocketMQ's names; MACHINE_ROOM and CONFIG are made with their lists."""


def strategy_named(strategy: str | Strategy) -> Strategy:
    """The strategy itself, or the one of that name.

    Raises:
        ConfigError: no such name, or nothing to call; MACHINE_ROOM and CONFIG need a list and are made as objects.
    """
    if callable(strategy):
        return strategy
    known = STRATEGIES.get(strategy.upper()) if isinstance(strategy, str) else None
    if known is None:
        names = ", ".join(sorted(STRATEGIES))
        raise ConfigError(
            f"rebalance strategy {strategy!r}: choose one of {names}, or pass MachineRoom(rooms), Configured(queues) "
            "or a callable of your own"
        )
    return known


def allocate(
    strategy: Strategy, client_id: str, queues: Collection[MessageQueue], members: Collection[str]
) -> set[MessageQueue]:
    """The queues of ``client_id`` over all topics: the strategy is applied to each topic by itself, as in RocketMQ.

    What a strategy returns beyond the queues it was given is ignored.
    """
    if client_id not in members:
        return set()
    ordered_members = sorted(members)
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        by_topic.setdefault(queue.topic, []).append(queue)
    mine: set[MessageQueue] = set()
    for of_topic in by_topic.values():
        mine.update(strategy(client_id, of_topic, ordered_members))
    return mine & set(queues)


def _index(client_id: str, members: Sequence[str]) -> int | None:
    return members.index(client_id) if client_id in members else None


def _ring_hash(text: str) -> int:
    """The first four bytes of the MD5 digest, big-endian: RocketMQ's place on the ring."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _room(name: str, kind: str) -> str:
    room, at, _ = name.partition("@")
    if not at or not room:
        raise ConfigError(f"{kind} {name!r} names no machine room: call it room@name, or pass a function that knows")
    return room
