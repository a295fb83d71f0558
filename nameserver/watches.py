"""Who watches which topics. A watcher owes its client the latest route of some topics, never a history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.proto import names
from penstock.proto.errors import FlowControl

from .holders import NOBODY, TOPICS_AT_ONCE, Names
from .routes import Change, RouteTable

TOPICS_PER_WATCHER_MAX = 100_000
WATCHERS_MAX = 20_000
TOPICS_WATCHED_MAX = 2_000_000
"""Of all watchers, counted for each; topics need not exist, and take half a KiB each."""


class Watcher:
    """One client's watch: its topics, and which of their routes are still to be sent.

    ``pending`` is a set, so a client that reads slowly costs no more than its number of topics, and gets the route
    as it is when it is sent.
    """

    __slots__ = ("pending", "topics", "wake")

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.pending: dict[str, None] = {}  # in order of marking
        self.wake = asyncio.Event()

    def mark(self, topic: str) -> None:
        self.pending[topic] = None
        self.wake.set()

    def take(self, count: int) -> list[str]:
        """Up to ``count`` pending topics, the longest pending first. They stop being pending."""
        taken = [topic for topic, _ in zip(self.pending, range(count), strict=False)]
        for topic in taken:
            del self.pending[topic]
        if not self.pending:
            self.wake.clear()
        return taken


class Watches:
    """All watchers, found by topic."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._by_topic: dict[str, set[Watcher]] = {}
        self._watched = 0  # topics of all watchers
        self._shards: Names = NOBODY  # whose topics are being marked
        self._rest: Iterator[str] = iter(())  # topics that were watched when they changed, without those looked at
        self._next: Names = NOBODY  # shards that changed since

    def open(self) -> Watcher:
        """A new watcher without topics. Raises FlowControl: there are too many."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise FlowControl(f"{WATCHERS_MAX} clients watch routes here: use another nameserver")
        watcher = Watcher()
        self._watchers.add(watcher)
        return watcher

    def close(self, watcher: Watcher) -> None:
        self.remove(watcher, list(watcher.topics))
        self._watchers.discard(watcher)

    def add(self, watcher: Watcher, topics: Iterable[str]) -> None:
        """Watch ``topics`` as well. Their routes become pending, also of topics that were watched before.

        Raises:
            InvalidName, FlowControl: an illegal name, or too many; none of ``topics`` was added.
        """
        wanted = [names.check_topic(topic) for topic in topics]
        fresh = len(set(wanted) - watcher.topics)
        if len(watcher.topics) + fresh > TOPICS_PER_WATCHER_MAX:
            raise FlowControl(f"more than {TOPICS_PER_WATCHER_MAX} topics in one watch")
        if self._watched + fresh > TOPICS_WATCHED_MAX:
            raise FlowControl(
                f"{fresh} topics to watch beside {self._watched}: at most {TOPICS_WATCHED_MAX} are allowed, counted "
                "for each client: use another nameserver"
            )
        self._watched += fresh
        for topic in wanted:
            watcher.topics.add(topic)
            self._by_topic.setdefault(topic, set()).add(watcher)
            watcher.mark(topic)

    def remove(self, watcher: Watcher, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic not in watcher.topics:
                continue
            watcher.topics.discard(topic)
            self._watched -= 1
            watcher.pending.pop(topic, None)
            watching = self._by_topic[topic]
            watching.discard(watcher)
            if not watching:
                del self._by_topic[topic]

    def publish(self, change: Change, table: RouteTable) -> None:
        """Mark the watched topics whose route ``change`` touches.

        A topic that does not exist has all shards in its route, so it is touched by a change of any. Where more than
        :data:`TOPICS_AT_ONCE` are watched, those of shards come by :meth:`step`.
        """
        for topic in change.topics:
            self._mark(topic)
        was_behind = self.is_behind
        self._next |= change.shards
        if self._next and not was_behind:
            self.step(table)

    @property
    def is_behind(self) -> bool:
        return bool(self._shards or self._next)

    def step(self, table: RouteTable) -> None:
        """Mark the next topics of shards that changed.

        Each is judged by who has it now: who gets or loses it, or begins to watch it, meanwhile has it marked for that.
        """
        if not self._shards:
            self._shards, self._next, self._rest = self._next, NOBODY, iter(list(self._by_topic))
        topics = list(islice(self._rest, TOPICS_AT_ONCE))
        for topic in topics:
            if not (holders := table.holders[topic]) or holders & self._shards:
                self._mark(topic)
        if len(topics) < TOPICS_AT_ONCE:
            self._shards, self._rest = NOBODY, iter(())

    def _mark(self, topic: str) -> None:
        for watcher in self._by_topic.get(topic, ()):
            watcher.mark(topic)

    def wake_all(self) -> None:
        """Let every watcher look up, with or without a route to send."""
        for watcher in self._watchers:
            watcher.wake.set()
