"""Which producers are there, by group, and the way to ask them: each client by a request of the data port that stands.

Such a request names all groups that the client sends for, one of a program, thousands of a gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.formats.record.kernels.pairs import name_hash
from penstock.proto.data_frames import Method
from penstock.proto.errors import LimitReached
from penstock.proto.names import PRODUCER_GROUPS_MAX, check_groups
from penstock.proto.wire.transactions_pb2 import JoinRequest, ProducerEvent, ProducerMember
from penstock.runtime.data.port import Link

from ...core.data_calls import Standing, StandingCalls
from ...core.wire import check_count, check_name
from ...limits import Limits
from .halves import Longs

log = logging.getLogger(__name__)

MEMBERS_MAX: Final = 200_000
"""Groups of all clients."""
_FNV_PRIME: Final = np.uint64(0x100000001B3)


class _Session(Standing):
    """One client's request; event loop only."""

    def __init__(self, client_id: str, request: JoinRequest, number: int, link: Link) -> None:
        super().__init__(client_id, number, Method.JOIN, link)
        self.groups = dict.fromkeys(request.groups)
        self.answers = request.answers

    @property
    def can_answer(self) -> bool:
        """True if it can be asked, and reads what it is asked."""
        return self.answers and self.link.has_room

    def send(self, event: ProducerEvent) -> None:
        """Tell it something."""
        self.answer(event.SerializeToString())


class ProducerSessions(StandingCalls[JoinRequest, _Session]):
    """All of one broker; event loop only."""

    verb, does, crowd = "join", "has joined", "producers are here"

    def __init__(self, limits: Limits, check_master: Callable[[], None]) -> None:
        """``check_master`` raises where nobody can join."""
        super().__init__(Method.JOIN, JoinRequest, limits)
        self._check_master = check_master
        self._groups: dict[str, dict[str, None]] = {}  # ids of clients, that of the one to be asked next first
        self._names: dict[int, str] = {}  # of these groups, by hash
        self._hashes: Longs | None = None  # the keys, ascending; None: to be made anew
        self._count = 0  # of groups of all sessions

    def members(self, group: str) -> list[ProducerMember]:
        """The producers of a group, sorted by client id."""
        client_ids = sorted(self._groups.get(group, {}))
        return [ProducerMember(client_id=each, answers=self.known[each].answers) for each in client_ids]

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
        self.known[client_id].send(ProducerEvent(check=check))
        return True

    def made(self, number: int, request: JoinRequest, link: Link) -> _Session:
        self._check_master()
        client_id = check_name("client id", request.client_id)
        check_count(f"groups of producer {client_id}", len(request.groups), PRODUCER_GROUPS_MAX)
        return _Session(client_id, request, number, link)

    def admit(self, made: _Session, request: JoinRequest, former: _Session | None) -> None:
        before = {} if former is None else former.groups
        check_groups(made.groups.keys() - before.keys())
        if self._count - len(before) + len(made.groups) > MEMBERS_MAX:
            raise LimitReached(f"client {made.client_id}: with its groups all producers have more than {MEMBERS_MAX}")
        self._change(made.client_id, before, made.groups)
        log.info(
            "producer joined client=%s groups=%d first=%s",
            made.client_id,
            len(made.groups),
            next(iter(made.groups), ""),
        )

    def greet(self, made: _Session) -> None:
        made.send(ProducerEvent(joined=ProducerEvent.Joined()))

    def on_left(self, former: _Session) -> None:
        self._change(former.client_id, former.groups, {})
        log.info("producer left client=%s groups=%d", former.client_id, len(former.groups))

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
        return next((client_id for client_id in members if self.known[client_id].can_answer), None)


def _hashes_of(groups: Sequence[str]) -> list[int]:
    """What ``name_hash`` gives for each of these names, which are ASCII: of thousands in a few milliseconds."""
    if not groups:
        return []
    texts = np.array(groups, np.bytes_)
    lengths, letters = np.strings.str_len(texts), texts.view(np.uint8).reshape(len(groups), -1)
    hashes = np.full(len(groups), name_hash("")).view(np.uint64)
    for place in range(letters.shape[1]):
        hashes = np.where(place < lengths, (hashes ^ letters[:, place]) * _FNV_PRIME, hashes)
    found: list[int] = hashes.view(np.int64).tolist()
    return found
