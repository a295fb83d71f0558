"""The Listen stream: which clients wait for replies here, and what is on its way to each.

A stream begins with ``Open`` and ends with its client, after ``SILENCE_S`` without a word, or when the same client
listens anew. Each heartbeat of a client is answered; so is ``Open``, when replies can come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from penstock.proto.errors import BrokerUnavailable, InvalidArgument, LimitReached, PenstockError
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest
from penstock.runtime.clock import Clock

from ...core.wire import check_name
from ...limits import Limits

log = logging.getLogger(__name__)

SILENCE_S: Final = 3.0
WATCH_INTERVAL_S: Final = 0.25
UNSENT_BYTES_MAX: Final = 1 << 20
"""Replies that wait for a client to read them, and a slice more. Further ones it gets later, from the topic."""


class Listener:
    """One stream; event loop only."""

    def __init__(self, heard_s: float) -> None:
        self.client_id = ""  # empty: it has not begun
        self.behind: int | None = None
        """Queue offset from which on it has not got its replies; None: as far as the topic is pushed. The pusher's."""
        self.heard_s = heard_s
        self.error: PenstockError | None = None
        self.is_over = False
        self._records: list[bytes] = []  # not sent yet
        self._unsent_bytes = 0
        self._owes_answer = False
        self._news = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """True if it reads what it is sent."""
        return self._unsent_bytes < UNSENT_BYTES_MAX

    def send(self, records: bytes) -> None:
        """Send it replies."""
        self._records.append(records)
        self._unsent_bytes += len(records)
        self._news.set()

    def answer(self) -> None:
        """Show it that this broker lives."""
        self._owes_answer = True
        self._news.set()

    def end(self, error: PenstockError | None) -> None:
        """Send nothing more; the first reason stands."""
        if not self.is_over:
            self.is_over, self.error = True, error
            self._news.set()

    async def next(self) -> bytes | None:
        """The records that it gets next, perhaps none of them; None at the end."""
        while not self._records and not self._owes_answer and not self.is_over:
            self._news.clear()
            await self._news.wait()
        if self.is_over:
            return None
        records = self._records[0] if len(self._records) == 1 else b"".join(self._records)
        self._records.clear()
        self._unsent_bytes, self._owes_answer = 0, False
        return records


class Listeners:
    """All of one broker. ``find(position)``, called for each that wants replies from there on, is the pusher's."""

    def __init__(self, clock: Clock, limits: Limits, find: Callable[[Listener, int], None]) -> None:
        self.by_hash: dict[int, Listener] = {}  # of client ids
        self._clock = clock
        self._limits = limits
        self._find = find
        self._is_closed = False

    def __len__(self) -> int:
        return len(self.by_hash)

    async def serve(
        self, requests: AsyncIterator[ListenRequest], on_room: Callable[[], None]
    ) -> AsyncIterator[ListenEvent]:
        """One stream, from its begin to its end. ``on_room`` is called when a client that was behind has read.

        Raises:
            InvalidArgument: the first request is no Open, another one is, or one makes no sense.
            BrokerUnavailable: ended by silence, by the same client's new stream, or by closing.
            LimitReached: too many clients listen.
        """
        if self._is_closed:
            raise BrokerUnavailable("the broker is shutting down: listen elsewhere")
        listener = Listener(self._clock.monotonic_s())
        tasks = [
            asyncio.create_task(self._read(listener, requests), name="listener-read"),
            asyncio.create_task(self._watch(listener), name="listener-watch"),
        ]
        try:
            while (records := await listener.next()) is not None:
                push_time_ms = self._clock.wall_ms() if records else 0
                yield ListenEvent(records=records, push_time_ms=push_time_ms)
                if listener.behind is not None and listener.has_room:
                    on_room()
            if listener.error is not None:
                raise listener.error
        finally:
            self._leave(listener)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def end_all(self, error: PenstockError) -> None:
        """End every stream."""
        for listener in list(self.by_hash.values()):
            listener.end(error)

    def close(self) -> None:
        """End every stream; new ones are refused."""
        self._is_closed = True
        self.end_all(BrokerUnavailable("the broker is shutting down: listen elsewhere"))

    async def _read(self, listener: Listener, requests: AsyncIterator[ListenRequest]) -> None:
        try:
            async for request in requests:
                listener.heard_s = self._clock.monotonic_s()
                self._take(listener, request)
                if listener.is_over:
                    return
            listener.end(None)
        except PenstockError as error:
            listener.end(error)
        except Exception as error:  # the edge of the reading task: this stream ends, others go on
            log.error("listener failed", exc_info=error)
            listener.end(BrokerUnavailable("the stream failed, see the broker's log"))

    def _take(self, listener: Listener, request: ListenRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "open":
            self._open(listener, request.open)
        elif not listener.client_id:
            raise InvalidArgument("a stream of replies begins with an Open")
        elif kind == "look_back":
            self._find(listener, _position(request.look_back))
        else:
            listener.answer()

    def _open(self, listener: Listener, request: ListenRequest.Open) -> None:
        from penstock.formats.record.kernels.pairs import name_hash

        if listener.client_id:
            raise InvalidArgument(f"client {listener.client_id}: it listens already in this stream")
        client_id, position = check_name("client id", request.client_id), _position(request.position)
        client = name_hash(client_id)
        former = self.by_hash.get(client)
        if former is None and len(self.by_hash) >= self._limits.sessions_max:
            raise LimitReached(f"client {client_id}: {len(self.by_hash)} listen for replies (maxConsumerSessions)")
        self._find(listener, position)
        if former is not None:
            former.end(BrokerUnavailable(f"client {client_id} listens in another stream now"))
        listener.client_id = client_id
        self.by_hash[client] = listener
        listener.answer()
        log.info("client listens for replies client=%s position=%d", client_id, position)

    def _leave(self, listener: Listener) -> None:
        from penstock.formats.record.kernels.pairs import name_hash

        listener.end(None)
        client = name_hash(listener.client_id)
        if self.by_hash.get(client) is listener:
            del self.by_hash[client]
            log.info("client listens no more client=%s", listener.client_id)

    async def _watch(self, listener: Listener) -> None:
        while not listener.is_over:
            await asyncio.sleep(WATCH_INTERVAL_S)
            silent_s = self._clock.monotonic_s() - listener.heard_s
            if silent_s >= SILENCE_S:
                listener.end(BrokerUnavailable(f"no heartbeat for {silent_s:.1f} s, the stream was ended"))
        # Also where the stream itself cannot notice, because it waits for a client that reads nothing.


def _position(position: int) -> int:
    if position < 0:
        raise InvalidArgument(f"position {position} of the log: it may not be negative")
    return position
