"""The thread that sends what nobody waits for: linger, queued batches, retries."""

from __future__ import annotations

import logging
import threading
import time

from ..cluster.retry import NEVER
from .delivery import TopicDelivery

log = logging.getLogger(__name__)

IDLE_ROUNDS = 20  # rounds without work before the thread sleeps until it is woken
PAUSE_S = 0.005  # between looks at topics that have nothing to do
PAUSE_S_MAX = 1.0


class Sender:
    """Pumps every topic of one producer in a daemon thread.

    While messages come it looks every few milliseconds; when none come it sleeps. ``is_sleeping`` tells ``produce``
    to wake it: set before the last look at the accumulators, so that a message is either seen or sees it.
    """

    def __init__(self, linger_ms: float) -> None:
        self.is_sleeping = False
        self._linger_s = max(linger_ms / 1000, 0.0005)
        self._topics: tuple[TopicDelivery, ...] = ()  # replaced by callers that hold the producer's lock
        self._event = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-sender", daemon=True)
        self._thread.start()

    def add(self, topic: TopicDelivery) -> None:
        """Pump ``topic`` from now on."""
        self._topics = (*self._topics, topic)
        self.wake()

    def wake(self) -> None:
        """Look at all topics soon."""
        self._event.set()

    def stop(self) -> None:
        """End the thread; what is not sent stays where it is. May be called again."""
        self._is_stopped = True
        self._event.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        quiet = 0
        while not self._is_stopped:
            self._event.clear()
            due = self._pump_all()
            has_open = any(len(topic.open) for topic in self._topics)
            quiet = 0 if has_open else quiet + 1
            if has_open:
                pause = min(due - time.monotonic(), self._linger_s)
            elif quiet < IDLE_ROUNDS:
                pause = min(due - time.monotonic(), PAUSE_S)
            else:
                self.is_sleeping = True
                if any(len(topic.open) for topic in self._topics):
                    self.is_sleeping = False
                    continue
                pause = min(due - time.monotonic(), PAUSE_S_MAX) if due < NEVER else NEVER
            if pause > 0:
                was_woken = self._event.wait(None if pause == NEVER else pause)
                quiet = 0 if was_woken and self.is_sleeping else quiet
            self.is_sleeping = False

    def _pump_all(self) -> float:
        due = NEVER
        now = time.monotonic()
        for topic in self._topics:
            try:
                due = min(due, topic.pump(now))
            except Exception:  # the thread serves every topic: one that fails is logged, the others go on
                log.exception("sending failed topic=%s", topic.topic)
        return due
