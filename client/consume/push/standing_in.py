"""The thread that fetches, while it works in the place of a worker that stands by.

A message that comes alone is worked on by the thread that has read it, so that no other has to be woken. Nothing is
fetched meanwhile. So an idle worker looks on: if the message takes long, that one fetches from then on, and the other
is a worker in its place.

Source: the pattern Leader/Followers (Schmidt et al., "Pattern-Oriented Software Architecture", volume 2).
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 0.02
"""So long the one that stands by waits: for the work to end, or for another turn of the fetching thread."""


class Role(enum.Enum):
    """What a thread does from now on."""

    FETCH = "fetch"
    WORK = "work"
    END = "end"
    """Nothing: another thread has its place."""


class StandingIn:
    """Who stands by, and who works in its place. ``lock`` guards all of it, and is held in every call."""

    def __init__(
        self, lock: threading.Condition, threads: list[threading.Thread], has_work: Callable[[], bool]
    ) -> None:
        """``threads``: the workers'. ``has_work``: True if an idle one should be woken."""
        self._lock = lock
        self._threads = threads
        self._has_work = has_work
        self._by: threading.Thread | None = None  # an idle worker; it begins nothing while another is in its place
        self._away: threading.Thread | None = None  # the fetching thread, while it works
        self._until_s = 0.0  # then it fetches no more
        self.turns = 0
        """How often it has worked."""

    @property
    def has_place(self) -> bool:
        """True if the fetching thread may work."""
        return self._by is not None and self._away is None

    def leave(self) -> None:
        """The calling, fetching thread begins to work."""
        self._away = threading.current_thread()
        self._until_s = time.monotonic() + PATIENCE_S
        self.turns += 1

    def come_back(self) -> bool:
        """The calling thread has done its work. True if it is the one that fetches still."""
        if self._away is not threading.current_thread():
            return False
        self._away = None
        if self._has_work():
            self._lock.notify()
        return True

    def is_wanted(self, turns: int) -> bool:
        """True if the calling worker should stand by: nobody does, and the other has worked since it counted that."""
        return self._by is None and self.turns != turns

    def stand_by(self) -> bool:
        """Wait, as an idle worker, for work or the time's end. True if the calling thread is to fetch from now on."""
        me = self._by = threading.current_thread()
        self._lock.wait(PATIENCE_S)
        while self._by is me and self._away is not None:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                self.relieve()
                break
            if self._has_work():  # what this one was woken for, and may not begin
                self._lock.notify()
            self._lock.wait(left_s)
        if self._by is not me:
            self._lock.notify()  # this one may have been woken for work
            return True
        self._by = None
        return False

    def relieve(self, thread: threading.Thread | None = None) -> None:
        """Let the one that stands by fetch, if the other one, or ``thread``, works: that one is a worker now."""
        away, by = self._away, self._by
        if away is None or by is None or thread not in (None, away):
            return
        self._threads[self._threads.index(by)] = away
        away.name, by.name = by.name, away.name
        self._away = self._by = None
