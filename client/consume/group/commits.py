"""Committing what a group member has finished, at the broker that granted the queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.proto.errors import BrokerUnavailable, PenstockError

from ...cluster import queues_in, rpc_error
from ...message import MessageQueue
from ..control import ControlLoop
from ..core import ConsumerCore
from ..local_queue import Lease, LocalQueue
from ..offsets import commit_request
from ..owner import COMMIT_TIMEOUT_S, uncommitted
from .consumer_session import ConsumerSession

log = logging.getLogger(__name__)

OWN_RESET_S = 5.0
LOG_EVERY = 20


@dataclass(eq=False, slots=True)
class Shard:
    """The session with one broker group, as it stands; the control thread writes it."""

    session: ConsumerSession
    session_id: int = 0  # 0: not joined
    address: str = ""  # where that session is
    lease: Lease | None = None  # how long its grants surely stand
    members: list[str] | None = None
    settle_until_s: float = 0.0
    commits: int = 0  # under way
    commit_failures: int = 0


class Commits:
    """Sends commits, and keeps in each queue what its broker has."""

    def __init__(self, core: ConsumerCore, control: ControlLoop) -> None:
        self._core = core
        self._connections = core.connections
        self._buffers = core.buffers
        self._control = control
        self._forced: dict[MessageQueue, tuple[int, float]] = {}  # offsets that went back, and when they were sent

    def is_own_reset(self, queue: MessageQueue, offset: int) -> bool:
        """True if a reset that the broker tells of is the echo of a commit that went back from here."""
        forced, sent_s = self._forced.get(queue, (-1, 0.0))
        return forced == offset and time.monotonic() - sent_s < OWN_RESET_S

    def send_progress(self, shard: Shard) -> None:
        """Commit what is new, without waiting; one round per broker group at a time."""
        if not shard.session_id or shard.commits:
            return
        for force, offsets in _by_direction(uncommitted(self._buffers, shard.session.broker_name)).items():
            self._send(shard, offsets, force)

    def commit(self, shard: Shard | None, offsets: Mapping[LocalQueue, int], timeout_s: float) -> list[MessageQueue]:
        """Commit at one broker and wait for it; the queues that it refused.

        Raises:
            BrokerUnavailable, OutcomeUnknown: no session, or no answer; nothing is known to be committed.
        """
        if shard is None or not shard.session_id:
            raise BrokerUnavailable("no session with the queue's broker to commit in: try again")
        refused: list[MessageQueue] = []
        for force, chosen in _by_direction(offsets).items():
            request = self._request(shard, chosen, force)
            reply = self._connections.call(shard.address, "CommitOffsets", request, timeout_s)
            refused += self._note(chosen, reply, shard.session.broker_name)
        return refused

    def report(self, refused: list[MessageQueue]) -> None:
        """Log what was refused: it is not tried again before there is further progress."""
        if refused:
            log.warning("commit was refused, not this member's queues count=%d first=%s", len(refused), refused[0])

    def _send(self, shard: Shard, offsets: dict[LocalQueue, int], force: bool) -> None:
        address = shard.address
        request = self._request(shard, offsets, force)
        try:
            call = self._connections.stub(address).CommitOffsets.future(request, timeout=COMMIT_TIMEOUT_S)
        except PenstockError as error:  # the connections were closed under us
            log.info("commit was not sent error=%s", error.message)
            return
        shard.commits += 1
        call.add_done_callback(lambda done: self._control.post(lambda: self._on_answer(shard, offsets, address, done)))

    def _on_answer(self, shard: Shard, offsets: dict[LocalQueue, int], address: str, call: Any) -> None:
        shard.commits -= 1
        try:
            reply = call.result()
        except grpc.RpcError as error:
            shard.commit_failures += 1
            if shard.commit_failures % LOG_EVERY == 1:
                failure = rpc_error(error, address)
                log.warning("commit failed, tried again soon queues=%d error=%s", len(offsets), failure.message)
            return
        except grpc.FutureCancelledError:
            return
        shard.commit_failures = 0
        self.report(self._note(offsets, reply, shard.session.broker_name))

    def _request(self, shard: Shard, offsets: Mapping[LocalQueue, int], force: bool) -> Any:
        by_queue = {local.queue: offset for local, offset in offsets.items()}
        if force:
            self._forced.update({each: (offset, time.monotonic()) for each, offset in by_queue.items()})
        return commit_request(self._core.group, self._core.client_id, shard.session_id, by_queue, force=force)

    def _note(self, offsets: Mapping[LocalQueue, int], reply: Any, broker_name: str) -> list[MessageQueue]:
        refused = queues_in(reply.refused, broker_name)
        with self._buffers.lock:
            for local, offset in offsets.items():
                # Also a refused one: it is tried again only with further progress.
                local.committed = offset
                if local.queue not in refused:
                    local.may_go_back = False
        return refused


def _by_direction(offsets: Mapping[LocalQueue, int]) -> dict[bool, dict[LocalQueue, int]]:
    """Apart: those that may be lower than the last commit, because the position was set by hand."""
    found: dict[bool, dict[LocalQueue, int]] = {}
    for local, offset in offsets.items():
        found.setdefault(local.may_go_back, {})[local] = offset
    return found
