"""A thread that follows a log: at once when somebody asks, and in intervals what nobody asks for."""

from __future__ import annotations

import abc
import threading
import time


class LogFollower(threading.Thread, abc.ABC):
    """Does its work whenever it is behind what was asked for; one turn takes all that has come up meanwhile.

    What nobody asks for waits until it is ``least_bytes``, or ``thorough_s`` seconds have passed since the last turn;
    every ``interval_s`` it is looked at (None: only what is asked for).
    """

    def __init__(self, name: str, asked: int, *, interval_s: float | None, thorough_s: float, least_bytes: int) -> None:
        super().__init__(name=name, daemon=True)
        self._asked = asked
        self._interval_s = interval_s
        self._thorough_s = thorough_s
        self._least_bytes = least_bytes
        self._condition = threading.Condition()
        self._is_stopping = False

    def request(self, end: int) -> None:
        """Have the work done for everything below ``end`` soon; returns at once."""
        with self._condition:
            self._asked = max(self._asked, end)
            self._condition.notify_all()  # others may wait there for what is done

    def stop(self) -> None:
        """End the thread after what it is doing; no further turn is begun."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        last = time.monotonic()
        while self._may_work():
            with self._condition:
                self._condition.wait_for(lambda: self._is_asked() or self._is_stopping, self._interval_s)
                if self._is_stopping:
                    return
                asked = self._is_asked()
            behind, now = self._bytes_behind(), time.monotonic()
            if asked or behind >= self._least_bytes or (behind > 0 and now - last >= self._thorough_s):
                last = now
                self._work()

    @abc.abstractmethod
    def _may_work(self) -> bool:
        """False ends the thread."""

    @abc.abstractmethod
    def _is_asked(self) -> bool:
        """True if somebody waits for bytes that can be done now."""

    @abc.abstractmethod
    def _bytes_behind(self) -> int:
        """How many bytes wait, asked for or not."""

    @abc.abstractmethod
    def _work(self) -> None:
        """Do all that waits."""
