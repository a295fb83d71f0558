"""Consumer groups at one broker: members, generations, and exclusive claims on queues. No I/O, no clock.

A queue of a group is granted to one session at a time. Further claims wait in order of arrival and are granted when
the holder releases the queue or its session ends. So two members never hold one queue, whatever allocation each of
them believes in, and a wanted queue is granted as soon as it is free. Of a member that locks its queues, the end of
its session frees none: :mod:`.locks` says when another may have them.

Every method returns the :class:`Changes` it caused; the caller tells the sessions. Holder and waiting claims always
belong to sessions that exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from .locks import Locks

MISMATCHES_MAX: Final = 10
"""Topics on which members differ that are told of, by one member; and different subscriptions that are looked at."""


class Grant(NamedTuple):
    """A queue that from now on is the session's alone."""

    session_id: int
    topic: str
    queue_id: int


class Mismatch(NamedTuple):
    """Two members of a group that want different messages of one topic."""

    group: str
    topic: str
    client_id: str
    expression: str | None  # None: not subscribed at all
    other_client_id: str
    other_expression: str | None


@dataclass(slots=True)
class Changes:
    """What a call changed: grants to tell, and groups whose member list is new."""

    grants: list[Grant] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    """A session in its group; ``wanted``: the queues that it holds or waits for.

    One that is ``broadcasting`` gets everything: the others share the queues without it.
    """

    group: str
    client_id: str
    broadcasting: bool = False
    lock_s: float = 0.0  # how long its work may last when its session has ended; 0: nobody waits for that
    wanted: dict[tuple[str, int], float] = field(default_factory=dict)  # -> until when an earlier lock lasts, 0: none
    subscriptions: dict[str, str] = field(default_factory=dict)
    digest: int = 0  # of the subscriptions

    def subscribe(self, subscriptions: Mapping[str, str]) -> None:
        """Replace the subscriptions."""
        self.subscriptions = dict(subscriptions)
        self.digest = hash(frozenset(subscriptions.items()))


class _Group:
    """Members and claims of one group."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.sessions: dict[str, int] = {}  # client id -> session id
        self.broadcasting: dict[int, None] = {}  # those of them that get everything
        self.holders: dict[tuple[str, int], int] = {}  # (topic, queue id) -> session id
        self.waiting: dict[tuple[str, int], dict[int, None]] = {}  # the same -> session ids in order of arrival


class Groups:
    """All groups of one broker.

    A client id has one session at most: whoever joins under the id of a living session ends that one, because it is
    the same client after its connection broke, before the broker noticed.
    """

    def __init__(self, locks: Locks | None = None) -> None:
        self._locks = Locks() if locks is None else locks
        self.claims = 0
        """Queues that all sessions want, counted for each."""
        self._sessions: dict[int, Member] = {}
        self._groups: dict[str, _Group] = {}
        self._newest_generation = (
            0  # of all groups that went: one that comes again begins above it, so none is used twice
        )

    def join(
        self,
        session_id: int,
        group: str,
        client_id: str,
        subscriptions: Mapping[str, str],
        lock_s: float = 0.0,
        now_s: float = 0.0,
        *,
        broadcasting: bool = False,
    ) -> Changes:
        """Make the session a member, or replace the subscriptions of a session that is one."""
        known = self._sessions.get(session_id)
        member = known or Member(group, client_id, broadcasting, lock_s)
        member.subscribe(subscriptions)
        return Changes() if known else self._admit(session_id, member, now_s)

    def superseded(self, group: str, client_id: str) -> int | None:
        """The living session that a new one under this client id would end."""
        return self._group(group).sessions.get(client_id)

    def claim(
        self, session_id: int, topic: str, queue_ids: Iterable[int], now_s: float = 0.0, held_until_s: float = 0.0
    ) -> Changes:
        """Want these queues too. Claiming a queue that the session already claims changes nothing.

        ``held_until_s``: the member held them in an earlier session, by a lock that lasts until then.
        """
        session = self._sessions[session_id]
        group = self._groups[session.group]
        changes = Changes()
        for queue_id in queue_ids:
            key = (topic, queue_id)
            if key in session.wanted:
                continue
            session.wanted[key] = held_until_s
            self.claims += 1
            group.waiting.setdefault(key, {})[session_id] = None
            self._grant(session.group, key, now_s, changes)
        return changes

    def look_again(self, session_id: int, now_s: float) -> Changes:
        """Grant what the session waits for and what may be had by now."""
        session, changes = self._sessions[session_id], Changes()
        waiting = self._groups[session.group].waiting
        for key in session.wanted if waiting else ():
            if key in waiting:
                self._grant(session.group, key, now_s, changes)
        return changes

    def release(self, session_id: int, topic: str, queue_ids: Iterable[int], now_s: float = 0.0) -> Changes:
        """Want these queues no more; the next in line gets what was held."""
        session = self._sessions[session_id]
        changes = Changes()
        for queue_id in queue_ids:
            if (topic, queue_id) in session.wanted:
                del session.wanted[topic, queue_id]
                self.claims -= 1
                self._leave_line(session.group, session_id, (topic, queue_id))
                self._grant(session.group, (topic, queue_id), now_s, changes)
        return changes

    def end(self, session_id: int, now_s: float = 0.0) -> Changes:
        """Forget the session. Ending an unknown one changes nothing."""
        changes = Changes()
        session = self._sessions.pop(session_id, None)
        if session is None:
            return changes
        self.claims -= len(session.wanted)
        group = self._groups[session.group]
        for key in session.wanted:
            if session.lock_s and group.holders.get(key) == session_id:
                self._locks.keep((session.group, *key), session.client_id, session.lock_s, now_s)
            self._leave_line(session.group, session_id, key)
            self._grant(session.group, key, now_s, changes)
        del group.sessions[session.client_id]
        group.broadcasting.pop(session_id, None)
        group.generation += 1
        changes.groups.append(session.group)
        if not group.sessions:
            assert not group.holders, "queues held without members"
            assert not group.waiting, "claims without members"
            self._newest_generation = max(self._newest_generation, group.generation)
            del self._groups[session.group]
        return changes

    def holder(self, group: str, topic: str, queue_id: int) -> int | None:
        """The session that holds the queue."""
        return self._group(group).holders.get((topic, queue_id))

    def member(self, session_id: int) -> Member:
        """What the session is in its group."""
        return self._sessions[session_id]

    def held_by(self, session_id: int) -> list[tuple[str, int]]:
        """The queues that the session holds, sorted."""
        session = self._sessions[session_id]
        holders = self._groups[session.group].holders
        return sorted(key for key in session.wanted if holders.get(key) == session_id)

    def has_locks(self, session_id: int) -> bool:
        """True if the session holds a queue that stays its member's when it ends."""
        session = self._sessions[session_id]
        holders = self._groups[session.group].holders
        return session.lock_s > 0 and any(holders.get(key) == session_id for key in session.wanted)

    def members(self, group: str) -> tuple[int, list[str]]:
        """Generation and client ids of those that share the queues, sorted."""
        found = self._group(group)
        sharing = (name for name, each in found.sessions.items() if each not in found.broadcasting)
        return found.generation, sorted(sharing)

    def broadcasting(self, group: str) -> list[int]:
        """The sessions of the members that get everything."""
        return list(self._group(group).broadcasting)

    def sessions(self, group: str) -> dict[str, int]:
        """Client id -> session of every member."""
        return dict(self._group(group).sessions)

    def mismatches(self, session_id: int) -> list[Mismatch]:
        """The first other member that subscribed differently, per topic: naming every pair would drown the log.

        At most :data:`MISMATCHES_MAX`, for the same reason. Topics are compared with one member only of those that
        subscribe alike, and with as few: a group may have very many of both.
        """
        session = self._sessions[session_id]
        if session.broadcasting:
            return []
        members = map(self._sessions.__getitem__, self._groups[session.group].sessions.values())
        others = [each for each in members if each.digest != session.digest and not each.broadcasting]
        different: dict[int, Member] = {}
        for other in sorted(others, key=attrgetter("client_id")):
            different.setdefault(other.digest, other)
        found: dict[str, Mismatch] = {}
        for other in itertools.islice(different.values(), MISMATCHES_MAX):
            mine, theirs = session.subscriptions, other.subscriptions
            for topic in sorted({topic for topic, _ in mine.items() ^ theirs.items()} - found.keys()):
                who = session.group, topic, session.client_id
                found[topic] = Mismatch(*who, mine.get(topic), other.client_id, theirs.get(topic))
                if len(found) == MISMATCHES_MAX:
                    return list(found.values())
        return list(found.values())

    def _group(self, name: str) -> _Group:
        """That group, or an empty one that would begin above all that went."""
        return self._groups.get(name) or _Group(self._newest_generation)

    def _admit(self, session_id: int, member: Member, now_s: float) -> Changes:
        former = self.superseded(member.group, member.client_id)
        changes = self.end(former, now_s) if former is not None else Changes()
        found = self._groups[member.group] = self._group(member.group)
        self._sessions[session_id] = member
        found.sessions[member.client_id] = session_id
        if member.broadcasting:
            found.broadcasting[session_id] = None
        found.generation += 1
        changes.groups = [member.group]
        return changes

    def _leave_line(self, group_name: str, session_id: int, key: tuple[str, int]) -> None:
        group = self._groups[group_name]
        if group.holders.get(key) == session_id:
            del group.holders[key]
        else:
            self._leave_waiting(group, session_id, key)

    def _grant(self, group_name: str, key: tuple[str, int], now_s: float, changes: Changes) -> None:
        """Give a queue that nobody holds to the first in line who may have it."""
        group = self._groups[group_name]
        if key in group.holders:
            return
        for session_id in group.waiting.get(key, ()):
            member = self._sessions[session_id]
            held_until_s = member.wanted[key]
            if self._locks.may_have((group_name, *key), member.client_id, member.lock_s, now_s, held_until_s):
                group.holders[key] = session_id
                self._leave_waiting(group, session_id, key)
                self._locks.taken((group_name, *key))
                changes.grants.append(Grant(session_id, *key))
                return

    @staticmethod
    def _leave_waiting(group: _Group, session_id: int, key: tuple[str, int]) -> None:
        line = group.waiting[key]
        del line[session_id]
        if not line:
            del group.waiting[key]
