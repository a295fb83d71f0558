"""Committing what a group member has finished, at the broker that granted the queue."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.proto.errors import BrokerUnavailable, PenstockError
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest

from ...cluster import queues_in, rpc_error, topic_offsets
from ...message import MessageQueue
from ..control import ControlLoop
from ..core import ConsumerCore
from ..local_queue import Lease, LocalQueue
from ..owner import COMMIT_TIMEOUT_S, Commit, by_direction, uncommitted
from .consumer_session import ConsumerSession

log = logging.getLogger(__name__)

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

    def send_progress(self, shard: Shard) -> None:
        """Commit what is new, without waiting; one round per broker group at a time."""
        if not shard.session_id or shard.commits:
            return
        for commit in by_direction(self._buffers, uncommitted(self._buffers, shard.session.broker_name)):
            self._send(shard, commit)

    def commit_at(
        self, shards: Iterable[tuple[Shard | None, Mapping[LocalQueue, int]]], timeout_s: float
    ) -> list[MessageQueue]:
        """As :meth:`commit` at several brokers; one that cannot be told keeps no other from it. The first error."""
        refused: list[MessageQueue] = []
        failure: PenstockError | None = None
        for shard, offsets in shards:
            try:
                refused += self.commit(shard, offsets, timeout_s)
            except PenstockError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return refused

    def commit(self, shard: Shard | None, offsets: Mapping[LocalQueue, int], timeout_s: float) -> list[MessageQueue]:
        """Commit at one broker and wait for it; the queues that it refused.

        Raises:
            BrokerUnavailable, OutcomeUnknown: no session, or no answer; nothing is known to be committed.
        """
        if shard is None or not shard.session_id:
            raise BrokerUnavailable("no session with the queue's broker to commit in: try again")
        refused: list[MessageQueue] = []
        for commit in by_direction(self._buffers, offsets):
            reply = self._connections.call(shard.address, "CommitOffsets", self._request(shard, commit), timeout_s)
            refused += self._note(commit, reply, shard)
        return refused

    def report(self, refused: list[MessageQueue]) -> None:
        """Log what was refused: it is not tried again before there is further progress."""
        if refused:
            log.warning(
                "commit was refused, not this member's queues, or cut off by a failover count=%d first=%s",
                len(refused),
                refused[0],
            )

    def _send(self, shard: Shard, commit: Commit) -> None:
        address = shard.address
        try:
            stub = self._connections.stub(address)
            call = stub.CommitOffsets.future(self._request(shard, commit), timeout=COMMIT_TIMEOUT_S)
        except PenstockError as error:  # the connections were closed under us
            log.info("commit was not sent error=%s", error.message)
            return
        shard.commits += 1
        call.add_done_callback(lambda done: self._control.post(lambda: self._on_answer(shard, commit, address, done)))

    def _on_answer(self, shard: Shard, commit: Commit, address: str, call: Any) -> None:
        shard.commits -= 1
        try:
            reply = call.result()
        except grpc.RpcError as error:
            shard.commit_failures += 1
            if shard.commit_failures % LOG_EVERY == 1:
                failure = rpc_error(error, address)
                queues = len(commit.offsets)
                log.warning("commit failed, tried again soon queues=%d error=%s", queues, failure.message)
            return
        except grpc.FutureCancelledError:
            return
        shard.commit_failures = 0
        self.report(self._note(commit, reply, shard))

    def _request(self, shard: Shard, commit: Commit) -> CommitOffsetsRequest:
        return CommitOffsetsRequest(
            group=self._core.group,
            client_id=self._core.client_id,
            session_id=shard.session_id,
            offsets=topic_offsets(commit.by_queue()),
            force=commit.force,
            epoch=commit.epoch,
        )

    def _note(self, commit: Commit, reply: Any, shard: Shard) -> list[MessageQueue]:
        refused = queues_in(reply.refused, shard.session.broker_name)
        commit.note(self._buffers, refused)
        return refused
