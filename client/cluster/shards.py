"""Calls at a broker group, whoever is its master: found, and found again while the group changes it.

For callers that repeat what they ask until it is done: every call made here may be made again without harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc

from penstock.proto.errors import BrokerUnavailable, PenstockError, from_rpc_error
from penstock.proto.wire import common_pb2, pipeline_pb2
from penstock.proto.wire.nameserver_pb2 import RouteQuery, RouteUpdate, ShardView, TopicRoute

from .connections import Connections
from .retry import pause_before_retry_s
from .routes import master_of

T = TypeVar("T")

QUERY_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 10.0
VIEW_AGE_S = 1.0


class ShardCalls:
    """Calls of one client at its broker groups. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._lock = threading.Lock()
        self._shards: dict[str, ShardView] = {}
        self._known: frozenset[str] = frozenset()
        self._seen_at = -VIEW_AGE_S

    def shards(self, *, fresh: bool = False) -> dict[str, ShardView]:
        """Every registered broker group by name, at most a second old.

        Raises:
            NameserverUnavailable: no nameserver answers.
        """
        with self._lock:
            if fresh or time.monotonic() - self._seen_at > VIEW_AGE_S:
                view = self.connections.query_nameserver("QueryCluster", common_pb2.Empty(), QUERY_TIMEOUT_S)
                self._shards = {shard.broker_name: shard for shard in view.shards}
                self._known = frozenset(shard.broker_name for shard in (*view.shards, *view.absent))
                self._seen_at = time.monotonic()
            return self._shards

    def known(self) -> frozenset[str]:
        """Names of all broker groups, also of those that nameservers remember and of which no member lives.

        At most a second old.

        Raises:
            NameserverUnavailable: no nameserver answers.
        """
        self.shards()
        with self._lock:
            return self._known

    def route(self, topic: str) -> TopicRoute:
        """Where ``topic`` lives; ``exists`` is false where no living broker group has it."""
        update: RouteUpdate = self.connections.query_nameserver(
            "QueryRoute", RouteQuery(topics=[topic]), QUERY_TIMEOUT_S
        )
        return update.routes[0]

    def at(
        self,
        broker_name: str,
        call: Callable[[str, float], T],
        timeout_s: float,
        *,
        reading: bool = False,
    ) -> T:
        """``call(address, seconds left)`` at the master, or with ``reading`` at a slave while there is no master.

        What is refused for the moment, unknown or broken is tried again until ``timeout_s``.

        Raises:
            PenstockError: the last one.
        """
        deadline = time.monotonic() + timeout_s
        attempt = 0
        while True:
            attempt += 1
            left_s = max(deadline - time.monotonic(), 0.05)
            try:
                return self._once(broker_name, call, min(left_s, CALL_TIMEOUT_S), reading=reading, fresh=attempt > 1)
            except PenstockError as error:
                pause_s = pause_before_retry_s(error, attempt, deadline)
                if pause_s is None:
                    raise
                time.sleep(pause_s)

    def address(self, broker_name: str, *, reading: bool = False, fresh: bool = False) -> str:
        """The master's address, or with ``reading`` a slave's while there is no master.

        Raises:
            BrokerUnavailable: nobody of the group lives.
        """
        shard = self.shards(fresh=fresh).get(broker_name)
        member = master_of(shard) if shard else None
        if member is None and reading and shard is not None:
            member = min(shard.members, key=lambda each: each.broker_id, default=None)
        if member is None:
            raise BrokerUnavailable(f"broker group {broker_name} has no living {'member' if reading else 'master'}")
        return member.address

    def staging(self, broker_name: str, method: str, request: Any, timeout_s: float) -> Any:
        """The answer of one call of the ``Staging`` service."""
        return self.at(
            broker_name,
            lambda address, left_s: getattr(self.connections.staging(address), method)(request, timeout=left_s),
            timeout_s,
        )

    def positions(
        self, broker_name: str, topic: str, timeout_s: float, *, timestamp_ms: int | None = None
    ) -> pipeline_pb2.TopicPositions:
        """Range, mean size and, with a time, the offset at it, of each queue of ``topic`` at that group."""
        request = pipeline_pb2.TopicPositionsRequest(
            topic=topic, timestamp_ms=timestamp_ms or 0, with_timestamp=timestamp_ms is not None
        )
        answer: pipeline_pb2.TopicPositions = self.at(
            broker_name,
            lambda address, left_s: self.connections.positions(address).QueryTopic(request, timeout=left_s),
            timeout_s,
            reading=True,
        )
        return answer

    def set_archive_watermark(
        self, broker_name: str, name: str, offset: int, *, force: bool = False, timeout_s: float = CALL_TIMEOUT_S
    ) -> int:
        """Let retention of that group keep what lies from ``offset`` on until the archive has it; -1 removes the mark.

        Answers the mark that holds now; setting it again is harmless.

        Raises:
            OffsetOutOfRange: beyond the log. InvalidArgument: backwards, without ``force``.
        """
        request = pipeline_pb2.ArchiveWatermark(name=name, offset=offset, force=force)
        answer: pipeline_pb2.ArchiveWatermark = self.at(
            broker_name,
            lambda address, left_s: self.connections.positions(address).SetArchiveWatermark(request, timeout=left_s),
            timeout_s,
        )
        return answer.offset

    def archive_watermarks(self, broker_name: str, *, timeout_s: float = CALL_TIMEOUT_S) -> Mapping[str, int]:
        """Every archive's mark at that group."""
        answer: pipeline_pb2.ArchiveWatermarks = self.at(
            broker_name,
            lambda address, left_s: self.connections.positions(address).ListArchiveWatermarks(
                common_pb2.Empty(), timeout=left_s
            ),
            timeout_s,
            reading=True,
        )
        return {mark.name: mark.offset for mark in answer.watermarks}

    def _once(
        self, broker_name: str, call: Callable[[str, float], T], timeout_s: float, *, reading: bool, fresh: bool
    ) -> T:
        address = self.address(broker_name, reading=reading, fresh=fresh)
        try:
            return call(address, timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"broker {address}") from error
