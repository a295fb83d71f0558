"""A broadcasting member: all queues of the subscribed topics, and a session with each of their broker groups.

A session makes the member known (``penstock group show``), refuses it where the group may not broadcast, and brings
resets. It claims nothing, and what it reads goes on without it. The offsets are in the member's own file, so a reset
reaches the members that are there, and is kept in that file.
"""

from __future__ import annotations

import logging
import time

from penstock.proto.errors import PenstockError

from ...message import MessageQueue
from ..assignment import Assignment
from ..core import ConsumerCore
from ..offsets import FileOffsets
from ..owner import COMMIT_TIMEOUT_S
from .consumer_session import ConsumerSession, SessionListener

log = logging.getLogger(__name__)


class Broadcasting(Assignment, SessionListener):
    """All queues; offsets in a file."""

    def __init__(self, core: ConsumerCore, store: FileOffsets) -> None:
        super().__init__(core, store, None)
        self._sessions: dict[str, ConsumerSession] = {}  # by broker name; the control thread's, and `_end`'s after it

    def _update(self) -> None:
        super()._update()
        self._control.post(self._open_sessions)

    def _open_sessions(self) -> None:
        """Have a session with each living broker group of the topics, and with those that may return."""
        needed = {each.broker_name for each in self._subscribed_queues()}
        living = {name for name in needed | self._sessions.keys() if self._directory.readable(name) is not None}
        for name in sorted(needed & living - self._sessions.keys()):
            self._sessions[name] = ConsumerSession(self._core, name, self._subscriptions, self, self._control.post)
            self._sessions[name].start()
        for name in living & self._sessions.keys() - needed:
            self._sessions.pop(name).close()

    def _routes_changed(self) -> None:
        super()._routes_changed()
        for session in self._sessions.values():
            session.on_routes()

    def _subscriptions_changed(self) -> None:
        super()._subscriptions_changed()
        for session in self._sessions.values():
            session.subscribe(self._subscriptions)

    def _end(self, deadline_s: float) -> None:
        sessions = list(self._sessions.values())
        for session in sessions:
            session.begin_close()
        super()._end(deadline_s)
        for session in sessions:
            session.close(max(deadline_s - time.monotonic(), 0.1))

    def on_lost(self, session: ConsumerSession, error: PenstockError) -> None:
        if not error.retryable:
            self._core.fail(error)
        log.info("consumer session lost broker=%s error=%s", session.broker_name, error.message)

    def on_reset(self, session: ConsumerSession, queue: MessageQueue, offset: int) -> None:
        log.info("offset was reset by an administrator queue=%s offset=%d", queue, offset)
        with self._buffers.lock:
            local = self._buffers.queues.get(queue)
            if local is not None:
                self._buffers.start(local, offset)
                local.committed = offset
        try:
            self._store.save({queue: offset}, COMMIT_TIMEOUT_S, force=True)
        except (PenstockError, OSError) as error:
            log.warning("reset is not in the file of offsets queue=%s offset=%d error=%s", queue, offset, error)
