"""One stream of a consumer: what is still to be sent to it, and when it was heard last."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

from penstock.proto.errors import FlowControl, PenstockError
from penstock.proto.wire.broker_pb2 import ConsumerEvent

from ..core.wire import QUEUES_MAX

CLAIMS_MAX = QUEUES_MAX
CLAIMS_OF_ALL_MAX = 2_000_000
"""Of all consumers; the queues need not exist, and take 200 bytes each."""
# Above every claim's grant there is room for what the group and an administrator cause meanwhile.
OUTGOING_MAX = CLAIMS_MAX + 10_000


class Session:
    """What :class:`~.consumer_sessions.ConsumerSessions` knows of one stream; event loop only."""

    def __init__(self, session_id: int, heard_s: float) -> None:
        self.session_id = session_id
        self.group = ""
        self.client_id = ""
        self.heard_s = heard_s
        self.compare_at_s = math.inf  # its subscriptions with those of the others
        self.error: PenstockError | None = None
        self.ended = False
        self.told: list[tuple[str, str, int]] = []
        """Group, topic and queue of each reset that it was sent since it was heard last."""
        self._outgoing: list[ConsumerEvent] = []
        self._members: ConsumerEvent | None = None  # only the newest list matters
        self._wake = asyncio.Event()

    def send(self, event: ConsumerEvent) -> None:
        """Queue ``event``; a session that does not read what it is sent is ended."""
        if self.ended:
            return
        if event.WhichOneof("event") == "members":
            self._members = event
        elif len(self._outgoing) < OUTGOING_MAX:
            self._outgoing.append(event)
        else:
            self.end(FlowControl(f"consumer {self.client_id}: {OUTGOING_MAX} events unread, the session was ended"))
        self._wake.set()

    def end(self, error: PenstockError | None) -> None:
        """Send nothing more; the stream ends with ``error``. The first reason stands."""
        if not self.ended:
            self.ended, self.error = True, error
            self._outgoing.clear()
            self._members = None
            self._wake.set()

    async def events(self) -> AsyncIterator[ConsumerEvent]:
        """What was queued, in order, until the session is ended; then its error, if there is one."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outgoing or self._members:
                ready, self._outgoing = self._outgoing, []
                if self._members is not None:
                    ready.append(self._members)
                    self._members = None
                for event in ready:
                    yield event
            if self.ended:
                if self.error is not None:
                    raise self.error
                return
