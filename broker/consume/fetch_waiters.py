"""Fetches that wait for messages: what each wants, and who is woken by what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ..core.dispatch import Arrivals, Asked, Fresh
from ..store.filter.conditions import Condition

OFFERED_MAX: Final = 16
"""Where more fetches wait for a topic, a record is dispatched first."""


@dataclass(slots=True)
class Wanted:
    """One queue of a fetch; ``offset`` moves on over messages that the filter leaves out, up to ``end``."""

    topic_index: int
    topic: str
    queue_id: int
    offset: int
    began: int
    end: int
    tags: frozenset[int] | None
    condition: Condition | None = None
    is_told: bool = False  # has a result in the reply

    @property
    def is_filtered(self) -> bool:
        """True if some messages are not wanted."""
        return self.tags is not None or self.condition is not None

    @property
    def count(self) -> int:
        """How many messages are wanted at most."""
        return self.end - self.offset


@dataclass(slots=True, eq=False)
class Waiter:
    """A waiting fetch: its queues by topic, and those of them that have news, each once however often it was hit.

    ``wake`` is called when there are some, or the broker stops; once too often does no harm. ``offer`` takes a
    record for one of them before it is dispatched (True), or leaves it.
    """

    queues: dict[str, dict[int, list[Wanted]]]
    wake: Callable[[], None]
    offer: Callable[[Wanted, Fresh], bool] = lambda each, fresh: False
    hits: dict[int, Wanted] = field(default_factory=dict)  # by identity

    @classmethod
    def of(
        cls,
        wanted: Iterable[Wanted],
        wake: Callable[[], None],
        offer: Callable[[Wanted, Fresh], bool] = lambda each, fresh: False,
    ) -> Waiter:
        """One that waits for all of these."""
        queues: dict[str, dict[int, list[Wanted]]] = {}
        for each in wanted:
            queues.setdefault(each.topic, {}).setdefault(each.queue_id, []).append(each)
        return cls(queues, wake, offer)

    def asked(self) -> Iterator[tuple[str, Iterator[tuple[int, int]]]]:
        """What is waited for."""
        for topic, queues in self.queues.items():
            yield topic, ((queue_id, each.offset) for queue_id, wanted in queues.items() for each in wanted)

    def take_hits(self) -> Iterable[Wanted]:
        """Those that have news, which are forgotten."""
        hits, self.hits = self.hits, {}
        return hits.values()

    def hit(self, wanted: Iterable[Wanted]) -> None:
        """These have news."""
        self.hits.update((id(each), each) for each in wanted)


class Waiters:
    """Fetches that wait for messages, found by topic; event loop only."""

    def __init__(self, on_added: Callable[[Asked], None]) -> None:
        """``on_added`` is told what another waits for."""
        self._on_added = on_added
        self._by_topic: dict[str, set[Waiter]] = {}

    def __len__(self) -> int:
        return len(set().union(*self._by_topic.values())) if self._by_topic else 0

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def waits_for(self, topic: str) -> bool:
        """True if a fetch waits for messages of ``topic``."""
        return topic in self._by_topic

    def add(self, waiter: Waiter) -> None:
        """Wake ``waiter`` from now on."""
        for topic in waiter.queues:
            self._by_topic.setdefault(topic, set()).add(waiter)
        self._on_added(waiter.asked())

    def remove(self, waiter: Waiter) -> None:
        """Forget ``waiter``; harmless when it is unknown."""
        for topic in waiter.queues:
            waiting = self._by_topic.get(topic)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._by_topic[topic]

    def on_arrived(self, arrivals: Arrivals) -> None:
        """Wake every fetch that waits for one of these queues."""
        woken: dict[Waiter, None] = {}
        for topic, queue_ids in arrivals.items():
            for waiter in self._by_topic.get(topic, ()):
                wanted = waiter.queues[topic]
                hits = queue_ids.intersection(wanted) if len(queue_ids) <= len(wanted) else wanted.keys() & queue_ids
                if hits:
                    for queue_id in hits:
                        waiter.hit(wanted[queue_id])
                    woken[waiter] = None
        for waiter in woken:  # behind the search: who is woken may leave
            waiter.wake()

    def offer(self, fresh: Fresh) -> bool:
        """Give a record that is not dispatched yet to those that wait for it, if they are few. True if all have it."""
        waiting = self._by_topic.get(fresh.topic, ())
        if len(waiting) > OFFERED_MAX:
            return False
        has_all = True
        for waiter in list(waiting):  # who takes it leaves
            for each in waiter.queues[fresh.topic].get(fresh.queue_id, ()):
                has_all &= waiter.offer(each, fresh)
        return has_all

    def wake_topic(self, topic: str) -> None:
        """Wake every fetch that waits in ``topic``: it was changed or deleted."""
        for waiter in list(self._by_topic.get(topic, ())):
            for wanted in waiter.queues[topic].values():
                waiter.hit(wanted)
            waiter.wake()

    def wake_all(self) -> None:
        """Wake every fetch, with or without news: the broker stops."""
        for waiter in set().union(*self._by_topic.values()) if self._by_topic else ():
            waiter.wake()
