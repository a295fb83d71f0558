"""The threads of one consumer's workers, and those whose listeners do not come back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Final

LATE_MAX: Final = 256
"""Threads of listeners that do not come back; with more of them, whoever hangs keeps its place."""


class WorkerThreads:
    """The callers hold the lock of the workers, but for :meth:`start` and :meth:`join`."""

    def __init__(self, name: str, work: Callable[[Any], None], count: int) -> None:
        """``work(job)`` is what a thread does."""
        self._name = name
        self._work = work
        self._made = itertools.count()
        self._late: list[threading.Thread] = []  # their listeners had had their time, and had not come back
        self.members = [self._new(None) for _ in range(count)]

    def start(self) -> None:
        for thread in self.members:
            thread.start()

    def join(self, deadline_s: float, caller: threading.Thread | None) -> list[str]:
        """Wait until all have ended but ``caller``; the names of those that have not at the deadline.

        Those that have not begun yet, as when the first one's listener closes its consumer, find it closed.
        """
        waited_for = [thread for thread in self.members if thread is not caller and thread.ident is not None]
        for thread in waited_for:
            thread.join(timeout=max(deadline_s - time.monotonic(), 0.01))
        return [thread.name for thread in waited_for if thread.is_alive()]

    def may_replace(self) -> bool:
        """True if another thread may hang."""
        self._late = [thread for thread in self._late if thread.is_alive()]
        return len(self._late) < LATE_MAX

    def replace(self, thread: threading.Thread, job: Any, *, with_another: bool) -> None:
        """The thread hangs; another one, which begins with ``job``, has its place."""
        self.members.remove(thread)
        self._late.append(thread)
        if with_another:
            self.members.append(self._new(job))
            self.members[-1].start()

    def _new(self, job: Any) -> threading.Thread:
        name = f"penstock-consume-{self._name}-{next(self._made)}"
        return threading.Thread(target=self._work, args=(job,), name=name, daemon=True)
