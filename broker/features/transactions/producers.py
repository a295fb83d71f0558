"""The ProducerSession stream: which producers are there, by group, and the way to ask them.

A session begins with ``Join`` and ends with its stream, after ``SILENCE_S`` without a word, or when the same client
joins again. Each heartbeat of a client is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from penstock.proto.errors import BrokerUnavailable, InvalidArgument, LimitReached, PenstockError
from penstock.proto.names import check_group
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.transactions_pb2 import ProducerEvent, ProducerMember, ProducerRequest
from penstock.runtime.clock import Clock

from ...core.wire import check_name
from ...limits import Limits

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS: Final = 1000
SILENCE_S: Final = 3.0
WATCH_INTERVAL_S: Final = 0.25
UNSENT_MAX: Final = 8
"""Events that wait for a client to read; one that has so many is not asked."""


class _Session:
    """One stream; only the task that serves it and the event loop's other callbacks touch it."""

    def __init__(self, heard_s: float) -> None:
        self.join: ProducerRequest.Join | None = None
        self.heard_s = heard_s
        self.error: PenstockError | None = None
        self.outgoing: asyncio.Queue[ProducerEvent | None] = asyncio.Queue()  # None: the end
        self.is_over = False

    def end(self, error: PenstockError | None) -> None:
        """Send nothing more; the first reason stands."""
        if not self.is_over:
            self.is_over, self.error = True, error
            self.outgoing.put_nowait(None)


class ProducerSessions:
    """All producer sessions of one broker; event loop only."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._groups: dict[str, dict[str, _Session]] = {}  # by client id, the one to be asked next first
        self._hashes: dict[int, str] = {}  # of these groups' names
        self._count = 0
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def members(self, group: str) -> list[ProducerMember]:
        """The producers of a group, sorted by client id."""
        sessions = sorted(self._groups.get(group, {}).items())
        return [
            ProducerMember(client_id=client_id, answers=each.join is not None and each.join.answers)
            for client_id, each in sessions
        ]

    def answering(self) -> list[int]:
        """Hashes of the names of all groups that have a member who can be asked."""
        return [found for found, group in self._hashes.items() if self._next(group) is not None]

    def ask(self, group: int, event: ProducerEvent) -> bool:
        """Ask a member of the group with that hash, each in turn. Returns False if nobody is there."""
        name = self._hashes.get(group, "")
        client_id = self._next(name)
        if client_id is None:
            return False
        session = self._groups[name].pop(client_id)
        self._groups[name][client_id] = session
        session.outgoing.put_nowait(event)
        return True

    async def serve(self, requests: AsyncIterator[ProducerRequest], context: Any) -> AsyncIterator[ProducerEvent]:
        """One session, from its stream's begin to its end.

        Raises:
            InvalidArgument, InvalidName: the first request is no Join, or a Join makes no sense.
            BrokerUnavailable: ended by silence, by the same client's new session, or by closing.
            LimitReached: there are too many producers.
        """
        if self._is_closed:
            raise BrokerUnavailable("the broker is shutting down: join elsewhere")
        session = _Session(self._clock.monotonic_s())
        tasks = [
            asyncio.create_task(self._read(session, requests), name="producer-session-read"),
            asyncio.create_task(self._watch(session), name="producer-session-watch"),
        ]
        try:
            while (event := await session.outgoing.get()) is not None:
                yield event
            if session.error is not None:
                raise session.error
        finally:
            self._leave(session)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def end_all(self, error: PenstockError) -> None:
        """End every session."""
        for session in self._all():
            session.end(error)

    def close(self) -> None:
        """End every session; new ones are refused."""
        self._is_closed = True
        self.end_all(BrokerUnavailable("the broker is shutting down: join elsewhere"))

    def _all(self) -> Iterable[_Session]:
        return [session for members in self._groups.values() for session in members.values()]

    def _next(self, group: str) -> str | None:
        for client_id, session in self._groups.get(group, {}).items():
            can_answer = session.join is not None and session.join.answers
            if can_answer and not session.is_over and session.outgoing.qsize() < UNSENT_MAX:
                return client_id
        return None

    async def _read(self, session: _Session, requests: AsyncIterator[ProducerRequest]) -> None:
        try:
            async for request in requests:
                session.heard_s = self._clock.monotonic_s()
                if request.WhichOneof("request") == "join":
                    self._join(session, request.join)
                elif session.join is None:
                    raise InvalidArgument("a producer's session begins with a Join")
                else:
                    session.outgoing.put_nowait(ProducerEvent(heartbeat=Empty()))
                if session.is_over:
                    return
            session.end(None)
        except PenstockError as error:
            session.end(error)
        except Exception as error:  # the edge of the reading task: this session ends, others go on
            log.error("producer session failed", exc_info=error)
            session.end(BrokerUnavailable("the session failed, see the broker's log"))

    async def _watch(self, session: _Session) -> None:
        while not session.is_over:
            await asyncio.sleep(WATCH_INTERVAL_S)
            silent_s = self._clock.monotonic_s() - session.heard_s
            if silent_s >= SILENCE_S:
                session.end(BrokerUnavailable(f"no heartbeat for {silent_s:.1f} s, the session was ended"))
        # Also where the stream itself cannot notice, because it waits for a client that reads nothing.

    def _join(self, session: _Session, join: ProducerRequest.Join) -> None:
        from penstock.formats.record.kernels.pairs import name_hash

        if session.join is not None:
            raise InvalidArgument(f"producer {join.client_id:.80}: it has joined already in this session")
        group, client_id = check_group(join.group), check_name("client id", join.client_id)
        members = self._groups.setdefault(group, {})
        former = members.pop(client_id, None)
        if former is not None:
            self._count -= 1
            former.end(BrokerUnavailable(f"client {client_id} has joined again in another session"))
        if self._count >= self._limits.sessions_max:
            raise LimitReached(f"group {group}: {self._count} producers are here (maxConsumerSessions)")
        session.join = join
        members[client_id] = session
        self._count += 1
        self._hashes[name_hash(group)] = group
        joined = ProducerEvent.Joined(heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS)
        session.outgoing.put_nowait(ProducerEvent(joined=joined))
        log.info("producer joined group=%s client=%s", group, client_id)

    def _leave(self, session: _Session) -> None:
        session.end(None)
        join = session.join
        if join is None or self._groups.get(join.group, {}).get(join.client_id) is not session:
            return
        from penstock.formats.record.kernels.pairs import name_hash

        del self._groups[join.group][join.client_id]
        self._count -= 1
        if not self._groups[join.group]:
            del self._groups[join.group]
            self._hashes.pop(name_hash(join.group), None)
        log.info("producer left group=%s client=%s", join.group, join.client_id)
