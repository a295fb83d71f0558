"""How keys move from one place to another without changing their messages' order. Decisions only.

A key stays in its queue through a failover. It moves when its group has been without a master for :data:`KEY_AWAY_S`,
when that is back, and when groups come or queues are added. While places change, a key whose old lane has a batch under
way is held until that batch is settled: so of one key nothing is on its way at two places, and within a queue its
messages never change their order. The keys of an order topic move only when its queues are changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...cluster.queues import WriteQueues
from ...cluster.retry import NEVER
from ..parts import LANES, Lane, Line, Part
from .key_places import KeyPlaces

KEY_AWAY_S = 3.0
"""How long a group is without a master before its keys go elsewhere: longer than a failover takes."""


class KeyMoves:
    """Where keys go now, and the messages that must wait until their key's former lane is free."""

    def __init__(self, queues: WriteQueues) -> None:
        self.places = KeyPlaces(WriteQueues(queues.ordered) if queues.ordered else queues)
        self.held: dict[tuple[str, int], Line] = {}
        """While places change: by former lane with a batch under way, the messages that wait for its end."""
        self._queues = queues  # those that may be written now
        self._settled_for = queues  # the route that the places follow already
        self._former: KeyPlaces | None = None  # before the change that is under way
        self._gone_since: dict[str, float] = {}  # by broker name: since when it has had no living master

    @property
    def missing(self) -> list[str]:
        """The groups of keys that have no living master."""
        return [name for name, _ in self.places.homes.shards if name not in self._queues]

    def adopt(self, queues: WriteQueues, others: Iterable[str], now: float) -> None:
        """The route changed. ``others``: names of groups beside the keys' that are to be watched."""
        self._queues = queues
        for name, _ in queues.shards:
            self._gone_since.pop(name, None)
        for name in (*self.missing, *others):
            if name not in queues:
                self._gone_since.setdefault(name, now)

    def gone_s(self, broker_name: str, now: float) -> float:
        """How long the group is known to be without a master."""
        return now - self._gone_since.setdefault(broker_name, now)

    def begin(self, lanes: Iterable[Lane], now: float) -> bool:
        """Begin a change of places, if one is due and none is under way. True: what is pending finds its lane anew."""
        if self._former is not None or (self._queues is self._settled_for and not self._gone_since):
            return False
        self._settled_for = self._queues
        if self._queues.ordered:
            wanted = KeyPlaces(WriteQueues(self._queues.ordered))
        else:
            away = frozenset(name for name in self.missing if now - self._gone_since.get(name, now) >= KEY_AWAY_S)
            wanted = self.places.changed(self._queues, away)
        if wanted == self.places:
            return False
        for lane in lanes:
            if lane.batch is not None and any(part.hashes is not None for part in lane.batch.parts):
                self.held[lane.key] = Line()
        self._former = self.places if self.held else None
        self.places = wanted
        return True

    def hold(self, part: Part) -> Part | None:
        """What is left of ``part`` when the messages that must wait for their old lanes are held; None if all must."""
        if self._former is None:
            return part
        assert part.hashes is not None
        old_shards, old_ids = self._former.places(part.hashes)
        shards, queue_ids = self.places.places(part.hashes)
        is_free = np.ones(part.count, dtype=np.bool_)
        groups, lines = [], []
        for (name, number), line in self.held.items():
            was_there = (old_shards == self._former.number(name)) & (old_ids % LANES == number)
            stays = (shards == self.places.number(name)) & (queue_ids % LANES == number)
            moves = was_there & ~stays
            if part.keyed is not None:
                moves &= part.keyed
            if moves.any():
                groups.append(np.flatnonzero(moves))
                lines.append(line)
                is_free &= ~moves
        if not groups:
            return part
        if is_free.any():
            groups.append(np.flatnonzero(is_free))
        pieces = part.split(groups)
        for piece, line in zip(pieces, lines, strict=False):
            line.append(piece)
        return pieces[-1] if len(pieces) > len(lines) else None

    def left(self, lane: Lane) -> Line | None:
        """The lane's batch is under way no more: the messages that waited for it go on now; None if keys stay there."""
        held = self.held.pop(lane.key, None)
        if not self.held:
            self._former = None
        return held

    def next_due(self) -> float:
        """When a change may begin."""
        if self._former is not None or self._queues.ordered:
            return NEVER
        waiting = (name for name in self.missing if name not in self.places.away)
        return min((self._gone_since[name] + KEY_AWAY_S for name in waiting), default=NEVER)
