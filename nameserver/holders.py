"""Which broker groups have which topics: the routes' index, brought up to date some topics at a time.

A broker that registers, or goes, may have 100,000 topics. Those take 0.1 to 0.3 s, for which a nameserver would serve
nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import Final, NamedTuple

from .shard import Topics

TOPICS_AT_ONCE: Final = 2_000
"""So many take a few milliseconds; between them others are served."""

Names = frozenset[str]
NOBODY: Final[Names] = frozenset()


class _Recheck(NamedTuple):
    """Topics of a group that may be others than the index says."""

    name: str
    before: Topics
    rest: Iterator[str]
    is_all_changed: bool


class Holders:
    """The index. It follows what ``topics_of`` says of a group; until the last :meth:`step` it may hold too much."""

    def __init__(self, topics_of: Callable[[str], Topics]) -> None:
        self._topics_of = topics_of
        self._of: dict[str, Names] = {}  # by topic; never an empty set
        self._rechecks: deque[_Recheck] = deque()

    def __getitem__(self, topic: str) -> Names:
        """With groups that have it already, though their topics are still to be looked at."""
        holders = self._of.get(topic, NOBODY)
        for recheck in self._rechecks:
            if recheck.name not in holders and topic in self._topics_of(recheck.name):
                holders |= {recheck.name}
        return holders

    def __contains__(self, topic: str) -> bool:
        return bool(self[topic])

    def topics(self) -> list[str]:
        """Those that anybody has, sorted."""
        return sorted(self._of)

    @property
    def is_behind(self) -> bool:
        return bool(self._rechecks)

    def note(self, name: str, topics: Iterable[str]) -> None:
        """Look at once which of these few the group has."""
        now = self._topics_of(name)
        for topic in topics:
            self._note(name, topic, topic in now)

    def changed(self, name: str, before: Topics, *, is_all_changed: bool = False) -> Names:
        """The group's topics are others than ``before``.

        Returns those that changed (``is_all_changed``: all of both). Of more than :data:`TOPICS_AT_ONCE`, none: they
        come by :meth:`step`.
        """
        now = self._topics_of(name)
        if before is now and not is_all_changed:
            return NOBODY
        before = {} if before is now else before.copy()  # a former master may go on to change its own
        recheck = _Recheck(name, before, chain(list(now), before), is_all_changed)
        if len(before) + len(now) <= TOPICS_AT_ONCE:
            return self._look(recheck, TOPICS_AT_ONCE)[0]
        self._rechecks.append(recheck)
        return NOBODY

    def step(self) -> Names:
        """Look at the next topics. Returns those that changed."""
        recheck = self._rechecks[0]
        changed, is_done = self._look(recheck, TOPICS_AT_ONCE)
        if is_done:
            self._rechecks.popleft()
        return changed

    def _look(self, recheck: _Recheck, count: int) -> tuple[Names, bool]:
        name, before, rest, is_all_changed = recheck
        now = self._topics_of(name)
        topics = list(islice(rest, count))
        changed = set()
        for topic in topics:
            shape = now.get(topic)
            if self._note(name, topic, shape is not None) or is_all_changed or shape != before.get(topic):
                changed.add(topic)
        return frozenset(changed), len(topics) < count

    def _note(self, name: str, topic: str, has: bool) -> bool:
        """True if the index said otherwise."""
        holders = self._of.get(topic, NOBODY)
        if (name in holders) == has:
            return False
        after = _with(holders, name) if has else _without(holders, name)
        if after:
            self._of[topic] = after
        else:
            del self._of[topic]
        return True


@lru_cache(maxsize=4096)
def _with(holders: Names, name: str) -> Names:
    """One set for all topics that have the same holders: a table holds very many."""
    return holders | {name}


@lru_cache(maxsize=4096)
def _without(holders: Names, name: str) -> Names:
    return holders - {name}
