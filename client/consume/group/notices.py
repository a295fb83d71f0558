"""Telling the user which queues come and go."""

from __future__ import annotations

import inspect
import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.runtime.conf import require

from ...message import MessageQueue

log = logging.getLogger(__name__)

Callback = Callable[[list[MessageQueue]], object]
CLOSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a user wants to be called with when queues become the consumer's, and when they are to leave it.

    Raises:
        ConfigError: not callable, or a coroutine function, which only the asyncio twins can run.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            require(value is None or callable(value), f"{name} must be callable", value)
            require(not inspect.iscoroutinefunction(value), f"an async {name} needs the asyncio consumer", value)

    def __bool__(self) -> bool:
        return self.on_assigned is not None or self.on_revoked is not None


class _Notice(NamedTuple):
    name: str  # of the callback; empty where the user knows already
    queue: MessageQueue
    then: Callable[[], None]


class Notices:
    """Calls the callbacks of one consumer, one after the other, in the order of what happened to its queues.

    They run in a thread of their own: so they may ask the consumer for commits and positions, and one that hangs does
    not keep the consumer from deciding. Methods are for the control thread, but :meth:`close`.
    """

    def __init__(self, name: str, callbacks: Callbacks, post: Callable[[Callable[[], None]], None]) -> None:
        """``post`` is given what follows a callback, to be done in the control thread."""
        self._callbacks = callbacks
        self._post = post
        self._known: set[MessageQueue] = set()  # those the user has been told of, or will be, as things stand
        self._inbox: queue.SimpleQueue[_Notice | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"penstock-notices-{name}", daemon=True)

    def assigned(self, queue: MessageQueue, then: Callable[[], None]) -> None:
        """Tell of a queue that comes, unless the user knows; ``then()`` when all that was to be told before is told."""
        if not self._callbacks:
            then()
            return
        name = "" if queue in self._known else "on_assigned"
        self._known.add(queue)
        self._put(_Notice(name, queue, then))

    def revoked(self, queue: MessageQueue, then: Callable[[], None]) -> None:
        """Tell of a queue that goes, if the user knows that it came; ``then()`` as above."""
        if queue not in self._known:
            then()
            return
        self._known.discard(queue)
        self._put(_Notice("on_revoked", queue, then))

    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread when what it has to tell is told; a callback that hangs is left alone."""
        if self._thread.is_alive():
            self._inbox.put(None)
            if not self.is_own_thread():
                self._thread.join(timeout=CLOSE_S)

    def _put(self, notice: _Notice) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._inbox.put(notice)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            found = [self._inbox.get()]
            while not self._inbox.empty():
                found.append(self._inbox.get())
            is_over = found[-1] is None
            notices = [notice for notice in found if notice is not None]
            for name, alike in itertools.groupby(notices, key=lambda notice: notice.name):
                self._tell(name, list(alike))

    def _tell(self, name: str, notices: list[_Notice]) -> None:
        callback = getattr(self._callbacks, name) if name else None
        if callback is not None:
            queues = sorted(notice.queue for notice in notices)
            try:
                callback(queues)
            except BaseException:  # the callback's edge: it changes nothing, and is logged; sys.exit too
                log.exception("callback failed name=%s queues=%d first=%s", name, len(queues), queues[0])
        for notice in notices:
            self._post(notice.then)
