"""Queues that nobody holds and that may not be granted all the same, because their last holder may still be at work.

A member of an orderly group locks its queues: when its session ends without a release, nobody knows if it is dead or
only cut off, so what it held stays its own for the time that its work may last (``lock_s``), after the time in which
it notices (:data:`SILENCE_S`). It alone may have such a queue before. Locks are in the memory of the master that
granted them. The next one has its members tell what they held (a claim that is *held*), and grants what nobody
speaks for only when each lock of earlier masters must have ended. Only a master that is surely the only one grants
locks; so a group has one place that does.

Source: RocketMQ RebalanceLockManager (60 s of its own for each lock, which a member renews); differs: a member that
lives renews all of its locks by its session, and a failover takes them along. No I/O; times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

SILENCE_S: Final = 3.0
"""A session ends after so long without a word; its member stops work by its own clock, and not later."""
KEPT_MAX: Final = 1_000_000
FORGET_S: Final = 5.0

Key = tuple[str, str, int]
"""Group, topic, queue id."""


class Locks:
    """The locks of one broker whose holders have no session."""

    def __init__(self, is_acting: Callable[[], bool] = lambda: True) -> None:
        """``is_acting()``: true if this broker is master, and nobody else can be: then what is granted is a lock."""
        self.is_acting = is_acting
        self._kept: dict[Key, tuple[str, float]] = {}  # by whom, and until when
        self._began_s = -math.inf
        self._older: frozenset[str] = frozenset()  # groups that may have locks of earlier masters
        self._forget_at_s = -math.inf
        self._known: set[Key] = set()  # granted by this one: what earlier ones granted is over

    def begin(self, groups: Collection[str], now_s: float) -> None:
        """A mastership begins: members of these groups may hold locks that an earlier one granted."""
        self._began_s, self._older = now_s, frozenset(groups)
        self._known.clear()
        self._kept.clear()

    def keep(self, key: Key, client_id: str, lock_s: float, now_s: float) -> None:
        """The session of the queue's holder has ended without a release."""
        self._kept[key] = client_id, now_s + SILENCE_S + lock_s

    def taken(self, key: Key) -> None:
        """The queue was granted."""
        self._kept.pop(key, None)
        if key[0] in self._older:
            self._known.add(key)

    def may_have(self, key: Key, client_id: str, lock_s: float, now_s: float, held_until_s: float) -> bool:
        """True if a member may have the queue, which nobody holds. ``lock_s`` 0: it locks nothing.

        ``held_until_s``: it says that it held the queue, by a lock that lasts until then.
        """
        owner, until_s = self._kept.get(key, (client_id, 0.0))
        if owner != client_id and now_s < until_s:
            return False
        if not lock_s:
            return True
        if not self.is_acting():
            return False
        is_known = key[0] not in self._older or key in self._known
        return is_known or now_s < held_until_s or now_s >= self._began_s + SILENCE_S + lock_s

    def __len__(self) -> int:
        return len(self._kept)

    def forget_old(self, now_s: float) -> None:
        """Drop what has ended, now and then."""
        if self._kept and now_s >= self._forget_at_s:
            self._forget_at_s = now_s + FORGET_S
            self._kept = {key: kept for key, kept in self._kept.items() if now_s < kept[1]}
