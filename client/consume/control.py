"""One thread that makes a consumer's decisions, one after the other, from events that other threads post."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

PAUSE_S = 0.1
"""After a decision that failed."""

Action = Callable[[], None]


class ControlLoop:
    """Runs posted actions in order, and ``tick(now_s)`` after them; the tick returns when it wants to run next."""

    def __init__(self, name: str, tick: Callable[[float], float]) -> None:
        self._tick = tick
        self._inbox: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Action]] = []  # a heap; the loop's thread alone uses it
        self._numbers = itertools.count()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; what was posted before runs first."""
        self._thread.start()

    def post(self, action: Action) -> None:
        """Run ``action`` in the loop's thread. May be called from any thread, under any lock."""
        self._inbox.put(action)

    def post_at(self, when_s: float, action: Action) -> None:
        """Run ``action`` at that monotonic time or soon after. Only for the loop's own thread."""
        heapq.heappush(self._later, (when_s, next(self._numbers), action))

    def poke(self) -> None:
        self._inbox.put(None)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the loop after the action that runs now; later ones are dropped."""
        self._closed.set()
        self._inbox.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while not self._closed.is_set():
            next_s = time.monotonic()
            with self._going_on():
                next_s = self._tick(next_s)
            with self._going_on():
                self._run_posted(next_s)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """The thread's edge: where one decision failed, the next ones still have to be made."""
        try:
            yield
        except Exception:
            log.exception("consumer decision failed thread=%s", self._thread.name)
            self._closed.wait(PAUSE_S)

    def _run_posted(self, next_s: float) -> None:
        if self._later:
            next_s = min(next_s, self._later[0][0])
        try:
            action = self._inbox.get(timeout=max(next_s - time.monotonic(), 0.001))
            while not self._closed.is_set():
                if action is not None:
                    action()
                action = self._inbox.get_nowait()
        except queue.Empty:
            pass
        while self._later and self._later[0][0] <= time.monotonic() and not self._closed.is_set():
            heapq.heappop(self._later)[2]()
