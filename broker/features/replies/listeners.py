"""Which clients wait for replies here: each by a request of the data port that stands.

It stands until its client's connection ends, says nothing for ``SILENCE_S``, or the same client listens anew. Clients
whose request stands ping.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, LimitReached, PenstockError
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest
from penstock.runtime.clock import Clock
from penstock.runtime.data_port import Link

from ...core.data_calls import Standing
from ...core.wire import check_name
from ...limits import Limits

log = logging.getLogger(__name__)

SILENCE_S: Final = 3.0
WATCH_INTERVAL_S: Final = 0.25


class Listener:
    """One client's request; event loop only."""

    def __init__(self, client_id: str, number: int, link: Link, clock: Clock) -> None:
        self.client_id = client_id
        self.behind: int | None = None
        """Queue offset from which on it has not got its replies; None: as far as the topic is pushed. The pusher's."""
        self.is_over = False
        self.link = link
        self._number = number
        self._clock = clock

    @property
    def has_room(self) -> bool:
        """True if it reads what it is sent."""
        return self.link.has_room

    def send(self, records: bytes = b"") -> None:
        """Send it replies; none: it listens now."""
        event = ListenEvent(push_time_ms=self._clock.wall_ms() if records else 0)
        self.link.answer(self._number, Method.LISTEN, frames.pack(event, records))

    def end(self, error: PenstockError | None) -> None:
        """Send nothing more, but why; the first reason stands."""
        if not self.is_over:
            self.is_over = True
            if error is not None:
                self.link.refuse(self._number, Method.LISTEN, error)


class Listeners:
    """All of one broker. ``find(listener, position)`` has one get its replies from there on; it is the pusher's.

    ``on_room`` is called when a client has read.
    """

    def __init__(
        self, clock: Clock, limits: Limits, find: Callable[[Listener, int], None], on_room: Callable[[], None]
    ) -> None:
        self.by_hash: dict[int, Listener] = {}  # of client ids
        self._clock = clock
        self._limits = limits
        self._find = find
        self._on_room = on_room
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None  # while anybody listens

    def __len__(self) -> int:
        return len(self.by_hash)

    def begin(self, link: Link) -> Standing[ListenRequest, Listener]:
        """The requests over one connection; for the data port."""
        link.on_room.append(self._on_room)
        return Standing(Method.LISTEN, ListenRequest, link, self.listen, self.leave)

    def end_all(self, error: PenstockError) -> None:
        """End every request."""
        for listener in list(self.by_hash.values()):
            self.leave(listener, error)

    def close(self) -> None:
        """End every request; new ones are refused."""
        self._is_closed = True
        self.end_all(BrokerUnavailable("the broker is shutting down: listen elsewhere"))
        if self._timer is not None:
            self._timer.cancel()

    def listen(self, number: int, request: ListenRequest, link: Link, former: Listener | None) -> Listener:
        """Let a client listen; ``former``: who listens over the same connection.

        Raises:
            InvalidArgument: the request makes no sense.
            BrokerUnavailable, NotMaster: nothing comes here. LimitReached: too many clients listen.
        """
        from penstock.formats.record.kernels.pairs import name_hash

        if self._is_closed:
            raise BrokerUnavailable("the broker is shutting down: listen elsewhere")
        client_id = check_name("client id", request.client_id)
        if request.position < 0:
            raise InvalidArgument(f"position {request.position} of the log: it may not be negative")
        if former is not None and not former.is_over and former.client_id != client_id:
            raise InvalidArgument(f"client {client_id}: {former.client_id} listens over this connection")
        client = name_hash(client_id)
        known = self.by_hash.get(client)
        if known is None and len(self.by_hash) >= self._limits.sessions_max:
            raise LimitReached(f"client {client_id}: {len(self.by_hash)} listen for replies (maxConsumerSessions)")
        made = Listener(client_id, number, link, self._clock)
        self._find(made, request.position)
        if known is not None:
            known.end(BrokerUnavailable(f"client {client_id} listens by another request now"))
        self.by_hash[client] = made
        made.send()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL_S, self._watch)
        log.info("client listens for replies client=%s position=%d", client_id, request.position)
        return made

    def leave(self, listener: Listener, error: PenstockError | None = None) -> None:
        """The client listens no more; ``error`` is told to it."""
        from penstock.formats.record.kernels.pairs import name_hash

        listener.end(error)
        client = name_hash(listener.client_id)
        if self.by_hash.get(client) is listener:
            del self.by_hash[client]
            log.info("client listens no more client=%s", listener.client_id)

    def _watch(self) -> None:
        """End those that are silent."""
        for listener in list(self.by_hash.values()):
            silent_s = listener.link.silent_s
            if silent_s >= SILENCE_S:
                self.leave(listener, BrokerUnavailable(f"nothing was heard for {silent_s:.1f} s: listen anew"))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WATCH_INTERVAL_S, self._watch) if self.by_hash else None
