"""Receives that wait for messages, and who wakes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator

from penstock.proto.errors import FlowControl

from ...core.dispatch import Arrivals, Watcher


class Waiters(Watcher):
    """By topic; event loop only. A watcher of the dispatcher."""

    def __init__(self, most: int, on_added: Callable[[], None] = lambda: None) -> None:
        """``most``: so many may wait. ``on_added`` is called when another waits."""
        self._most = most
        self._on_added = on_added
        self._by_topic: dict[str, set[asyncio.Future[None]]] = {}
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def waits_for(self, topic: str) -> bool:
        """True if a receive waits: of its group's retry topic too."""
        return self.count > 0

    @contextlib.contextmanager
    def waiting(self, topics: Collection[str]) -> Iterator[asyncio.Future[None]]:
        """A future that is done when one of the topics may have something. Raises FlowControl: too many wait."""
        if self.count >= self._most:
            raise FlowControl(f"polling full: {self.count} receives wait already (maxWaitingFetches): try later")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(future)
        self.count += 1
        self._on_added()
        try:
            yield future
        finally:
            self.count -= 1
            for topic in topics:
                waiting = self._by_topic[topic]
                waiting.discard(future)
                if not waiting:
                    del self._by_topic[topic]

    def on_arrived(self, arrivals: Arrivals) -> None:
        """These queues have new messages."""
        for topic in arrivals:
            self.wake(topic)

    def wake(self, topic: str) -> None:
        """The topic may have something."""
        for future in self._by_topic.get(topic, ()):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """The broker stops, or is no master any more."""
        for topic in self._by_topic:
            self.wake(topic)
