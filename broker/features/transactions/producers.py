"""Which producers are there, by group, and the way to ask them: each client by a request of the data port that stands.

It names all groups that the client sends for, one of a program, thousands of a gateway. It stands until its client's
connection ends, says nothing for ``SILENCE_S``, or the same client joins anew. Clients whose request stands ping.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, LimitReached, PenstockError
from penstock.proto.names import PRODUCER_GROUPS_MAX, check_groups
from penstock.proto.wire.transactions_pb2 import JoinRequest, ProducerEvent, ProducerMember
from penstock.runtime.data_port import Link

from ...core.data_calls import Standing
from ...core.wire import check_count, check_name
from ...limits import Limits
from .halves import Longs

log = logging.getLogger(__name__)

SILENCE_S: Final = 3.0
WATCH_INTERVAL_S: Final = 0.25
MEMBERS_MAX: Final = 200_000
"""Groups of all clients."""
_FNV_PRIME: Final = np.uint64(0x100000001B3)


class _Session:
    """One client's request; event loop only."""

    def __init__(self, request: JoinRequest, number: int, link: Link) -> None:
        self.client_id = request.client_id
        self.groups = dict.fromkeys(request.groups)
        self.answers = request.answers
        self.link = link
        self.is_over = False
        self._number = number

    @property
    def can_answer(self) -> bool:
        """True if it can be asked, and reads what it is asked."""
        return self.answers and self.link.has_room

    def send(self, event: ProducerEvent) -> None:
        """Tell it something."""
        self.link.answer(self._number, Method.JOIN, event.SerializeToString())

    def end(self, error: PenstockError | None) -> None:
        """Send nothing more, but why; the first reason stands."""
        if not self.is_over:
            self.is_over = True
            if error is not None:
                self.link.refuse(self._number, Method.JOIN, error)


class ProducerSessions:
    """All of one broker; event loop only."""

    def __init__(self, limits: Limits, check_master: Callable[[], None]) -> None:
        """``check_master`` raises where nobody can join."""
        self._limits = limits
        self._check_master = check_master
        self._sessions: dict[str, _Session] = {}  # by client id
        self._groups: dict[str, dict[str, None]] = {}  # ids of clients, that of the one to be asked next first
        self._names: dict[int, str] = {}  # of these groups, by hash
        self._hashes: Longs | None = None  # the keys, ascending; None: to be made anew
        self._count = 0  # of groups of all sessions
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None  # while anybody is here

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, link: Link) -> Standing[JoinRequest, _Session]:
        """The requests over one connection; for the data port."""
        return Standing(Method.JOIN, JoinRequest, link, self.join, self.leave)

    def members(self, group: str) -> list[ProducerMember]:
        """The producers of a group, sorted by client id."""
        client_ids = sorted(self._groups.get(group, {}))
        return [ProducerMember(client_id=each, answers=self._sessions[each].answers) for each in client_ids]

    def are_here(self, groups: Longs) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of these groups, hashes of names, have a member."""
        if self._hashes is None:
            self._hashes = np.sort(np.fromiter(self._names, np.int64, len(self._names)))
        if not len(self._hashes):
            return np.zeros(len(groups), np.bool_)
        places = np.searchsorted(self._hashes, groups)
        found: np.ndarray[Any, np.dtype[np.bool_]] = self._hashes[np.minimum(places, len(self._hashes) - 1)] == groups
        return found

    def can_answer(self, group: int) -> bool:
        """True if a member of the group with that hash can be asked."""
        return self._next(self._names.get(group, "")) is not None

    def ask(self, group: int, check: ProducerEvent.Check) -> bool:
        """Ask a member of the group with that hash, each in turn. Returns False if nobody is there."""
        name = self._names.get(group, "")
        client_id = self._next(name)
        if client_id is None:
            return False
        del self._groups[name][client_id]
        self._groups[name][client_id] = None
        check.group = name
        self._sessions[client_id].send(ProducerEvent(check=check))
        return True

    def end_all(self, error: PenstockError) -> None:
        """End every session."""
        for session in list(self._sessions.values()):
            self.leave(session, error)

    def close(self) -> None:
        """End every session; new ones are refused."""
        self._is_closed = True
        self.end_all(BrokerUnavailable("the broker is shutting down: join elsewhere"))
        if self._timer is not None:
            self._timer.cancel()

    def join(self, number: int, request: JoinRequest, link: Link, former: _Session | None) -> _Session:
        """Have a client be a member of these groups, and of no others; ``former``: who joined over that connection.

        Raises:
            InvalidArgument, InvalidName: the request makes no sense.
            BrokerUnavailable, NotMaster: nobody is asked here. LimitReached: there are too many clients, or groups.
        """
        if self._is_closed:
            raise BrokerUnavailable("the broker is shutting down: join elsewhere")
        self._check_master()
        client_id = check_name("client id", request.client_id)
        check_count(f"groups of producer {client_id}", len(request.groups), PRODUCER_GROUPS_MAX)
        if former is not None and not former.is_over and former.client_id != client_id:
            raise InvalidArgument(f"client {client_id}: {former.client_id} has joined over this connection")
        made, known = _Session(request, number, link), self._sessions.get(client_id)
        before = {} if known is None else known.groups
        check_groups(made.groups.keys() - before.keys())
        if known is None and len(self._sessions) >= self._limits.sessions_max:
            raise LimitReached(f"client {client_id}: {len(self._sessions)} producers are here (maxConsumerSessions)")
        if self._count - len(before) + len(made.groups) > MEMBERS_MAX:
            raise LimitReached(f"client {client_id}: with its groups all producers have more than {MEMBERS_MAX}")
        if known is not None:
            known.end(BrokerUnavailable(f"client {client_id} has joined anew by another request"))
        self._sessions[client_id] = made
        self._change(client_id, before, made.groups)
        made.send(ProducerEvent(joined=ProducerEvent.Joined()))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL_S, self._watch)
        log.info(
            "producer joined client=%s groups=%d first=%s", client_id, len(made.groups), next(iter(made.groups), "")
        )
        return made

    def leave(self, session: _Session, error: PenstockError | None = None) -> None:
        """The client is gone; ``error`` is told to it."""
        session.end(error)
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
            self._change(session.client_id, session.groups, {})
            log.info("producer left client=%s groups=%d", session.client_id, len(session.groups))

    def _change(self, client_id: str, before: Mapping[str, None], after: Mapping[str, None]) -> None:
        """A client is a member of other groups than before."""
        self._count += len(after) - len(before)
        self._hashes = None
        come = list(after.keys() - before.keys())
        for group, found in zip(come, _hashes_of(come), strict=True):
            self._names[found] = group
            self._groups.setdefault(group, {})[client_id] = None
        empty = []
        for group in before.keys() - after.keys():
            del self._groups[group][client_id]
            if not self._groups[group]:
                del self._groups[group]
                empty.append(group)
        for found in _hashes_of(empty):
            self._names.pop(found, None)

    def _next(self, group: str) -> str | None:
        members = self._groups.get(group, {})
        return next((client_id for client_id in members if self._sessions[client_id].can_answer), None)

    def _watch(self) -> None:
        """End those that are silent."""
        for session in list(self._sessions.values()):
            silent_s = session.link.silent_s
            if silent_s >= SILENCE_S:
                self.leave(session, BrokerUnavailable(f"nothing was heard for {silent_s:.1f} s: join anew"))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WATCH_INTERVAL_S, self._watch) if self._sessions else None


def _hashes_of(groups: Sequence[str]) -> list[int]:
    """What ``name_hash`` gives for each of these names, which are ASCII: of thousands in a few milliseconds."""
    from penstock.formats.record.kernels.pairs import name_hash

    if not groups:
        return []
    texts = np.array(groups, np.bytes_)
    lengths, letters = np.strings.str_len(texts), texts.view(np.uint8).reshape(len(groups), -1)
    hashes = np.full(len(groups), name_hash("")).view(np.uint64)
    for place in range(letters.shape[1]):
        hashes = np.where(place < lengths, (hashes ^ letters[:, place]) * _FNV_PRIME, hashes)
    found: list[int] = hashes.view(np.int64).tolist()
    return found
