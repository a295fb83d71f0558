"""Which clients wait for replies here: each by a request of the data port that stands."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.formats.record.kernels.pairs import name_hash
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest
from penstock.runtime.clock import Clock
from penstock.runtime.data.port import Conversation, Link

from ...core.data_calls import Standing, StandingCalls
from ...core.wire import check_name
from ...limits import Limits

log = logging.getLogger(__name__)


class Listener(Standing):
    """One client's request; event loop only."""

    def __init__(self, client_id: str, number: int, link: Link, clock: Clock) -> None:
        super().__init__(client_id, number, Method.LISTEN, link)
        self.client = name_hash(client_id)
        self.behind: int | None = None
        """Queue offset from which on it has not got its replies; None: as far as the topic is pushed. The pusher's."""
        self._clock = clock

    def send(self, records: bytes = b"") -> None:
        """Send it replies; none: it listens now."""
        event = ListenEvent(push_time_ms=self._clock.wall_ms() if records else 0)
        self.answer(frames.pack(event, records))


class Listeners(StandingCalls[ListenRequest, Listener]):
    """All of one broker. ``find(listener, position)`` has one get its replies from there on; it is the pusher's.

    ``on_room`` is called when a client has read.
    """

    verb, does, crowd = "listen", "listens", "listen for replies"

    def __init__(
        self, clock: Clock, limits: Limits, find: Callable[[Listener, int], None], on_room: Callable[[], None]
    ) -> None:
        super().__init__(Method.LISTEN, ListenRequest, limits)
        self.by_hash: dict[int, Listener] = {}  # of client ids
        self._clock = clock
        self._find = find
        self._on_room = on_room

    def __call__(self, link: Link) -> Conversation:
        link.on_room.append(self._on_room)
        return super().__call__(link)

    def made(self, number: int, request: ListenRequest, link: Link) -> Listener:
        client_id = check_name("client id", request.client_id)
        if request.position < 0:
            raise InvalidArgument(f"position {request.position} of the log: it may not be negative")
        return Listener(client_id, number, link, self._clock)

    def admit(self, made: Listener, request: ListenRequest, former: Listener | None) -> None:
        self._find(made, request.position)
        self.by_hash[made.client] = made
        log.info("client listens for replies client=%s position=%d", made.client_id, request.position)

    def greet(self, made: Listener) -> None:
        made.send()

    def on_left(self, former: Listener) -> None:
        if self.by_hash.get(former.client) is former:  # else it is of another client with that hash
            del self.by_hash[former.client]
        log.info("client listens no more client=%s", former.client_id)
