"""A writer's dealings with the brokers: who decides, what is decided, and publishing it.

Every method may be repeated, by any process.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.client.cluster import Calls
from penstock.proto.errors import BrokerUnavailable, ConfigError, PenstockError
from penstock.proto.wire.pipeline_pb2 import (
    DecideRequest,
    ExpireReply,
    FinishRequest,
    OpenWriterRequest,
    PublishReply,
    PublishRequest,
    StagedKey,
    StagedKeys,
    WriterName,
    WriterState,
)
from penstock.proto.wire.pipeline_pb2_grpc import StagingStub

from ..waiting import patiently

log = logging.getLogger(__name__)

Keys = Mapping[str, Mapping[str, int]]
"""key -> broker group -> number of chunks staged there."""


def hash_64(text: str) -> int:
    """A number for a name, never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") or 1


class WriterCalls:
    """One writer in one run."""

    def __init__(self, calls: Calls, writer: str, run: str, *, timeout_s: float) -> None:
        self._calls = calls
        self._timeout_s = timeout_s
        self.writer = writer
        self.run = run
        self.run_before = ""
        """Which run :meth:`open` has taken the writer over from, if another one had it."""

    def open(self, layout: Mapping[str, str]) -> WriterState:
        """Take the writer over for this run, tell every shard who decides for it, and say what it has been so far.

        While nobody that answers knows the writer, groups without a master and groups that are down are waited for:
        one of them may decide for it, and a second one that decides would repeat what is published.
        Raises StaleProducer: a newer run has taken over.
        Raises RouteNotFound, BrokerUnavailable: not possible now.
        Raises ConfigError: the brokers do not agree on who decides.
        """
        return patiently(lambda turn_s: self._open(layout, turn_s), self._timeout_s, f"writer {self.writer}")

    def _open(self, layout: Mapping[str, str], timeout_s: float) -> WriterState:
        """The same in a short time: who has a master may be another shard by the next try."""
        names, others = self._calls.directory.masters()
        with ThreadPoolExecutor(min(16, len(names))) as pool:
            known = list(pool.map(lambda name: self._query(name, timeout_s), names))
            coordinator = next((state.coordinator for state in known if state.exists and state.coordinator), "")
            if not coordinator:
                rest = [self._query_silent(name, timeout_s) for name in others]
                coordinator = next((state.coordinator for state in rest if state.exists and state.coordinator), "")
            if not coordinator:
                coordinator = names[hash_64(self.writer) % len(names)]
            former = next((other.run for name, other in zip(names, known, strict=True) if name == coordinator), "")
            if former != self.run:
                self.run_before = former
            request = OpenWriterRequest(writer=self.writer, run=self.run, coordinator=coordinator, layout=layout)
            state: WriterState = self._call(coordinator, "OpenWriter", request, timeout_s)
            if state.coordinator not in ("", coordinator):
                raise ConfigError(
                    f"writer {self.writer}: broker group {coordinator} says that {state.coordinator} decides, another "
                    f"one says {coordinator}: start again; if that stays so, begin with a new checkpoint or producerId"
                )
            request = OpenWriterRequest(writer=self.writer, run=self.run, coordinator=coordinator)
            behind = [
                name
                for name, other in zip(names, known, strict=True)
                if name != coordinator and (not other.exists or other.run != self.run)
            ]
            list(pool.map(lambda name: self._call(name, "OpenWriter", request, timeout_s), behind))
        return state

    def decide(self, coordinator: str, batch: int, keys: Keys, content: str = "") -> WriterState:
        """Let these attempts be the batch, unless it is decided; a batch before it is published first.

        ``content``: what the batch is about; the answer has that of the decided one.
        Raises StaleProducer, StagedDataGone: this run may not, or cannot.
        """
        staged = [StagedKey(key=key, chunks=chunks) for key, chunks in keys.items()]
        request = DecideRequest(writer=self.writer, run=self.run, batch=batch, keys=staged, content=content)
        state: WriterState = self.at_master(coordinator, "QueryWriter", WriterName(writer=self.writer))
        if state.decided_batch < batch and not state.finished:
            self.complete(coordinator, state)
        decided: WriterState = self.at_master(coordinator, "Decide", request)
        return decided

    def complete(self, coordinator: str, state: WriterState) -> int:
        """Publish the decided batch at every shard that holds a part of it, and note that it is done.

        Answers how many records that were; 0 for those that were published before.
        """
        if state.finished:
            return 0
        shards: dict[str, dict[str, int]] = {}
        for each in state.keys:
            for broker, count in each.chunks.items():
                shards.setdefault(broker, {})[each.key] = count
        batch = state.decided_batch
        with ThreadPoolExecutor(max(1, min(16, len(shards)))) as pool:
            published = list(pool.map(lambda item: self._publish(item[0], batch, item[1]), sorted(shards.items())))
        self.at_master(coordinator, "Finish", FinishRequest(writer=self.writer, batch=batch))
        return sum(published)

    def abort(self, coordinator: str, batch: int, keys: Keys) -> None:
        """Drop what these attempts have staged, unless it is decided: a decision is never undone."""
        wanted = StagedKeys(writer=self.writer, batch=batch, keys=sorted(keys))
        reply: ExpireReply = self.at_master(coordinator, "Expire", wanted)
        decided = {each.key for each in reply.decided}
        shards: dict[str, list[str]] = {}
        for key, brokers in keys.items():
            for broker in brokers if key not in decided else ():
                shards.setdefault(broker, []).append(key)
        for broker, dropped in shards.items():
            try:
                self.at_master(broker, "Drop", StagedKeys(writer=self.writer, batch=batch, keys=dropped))
            except PenstockError as error:  # the shard drops it by itself when its time is over
                log.warning("staged data not dropped now broker=%s writer=%s error=%s", broker, self.writer, error)

    def _publish(self, broker: str, batch: int, chunks: Mapping[str, int]) -> int:
        request = PublishRequest(writer=self.writer, batch=batch, chunks=chunks)
        reply: PublishReply = self.at_master(broker, "Publish", request)
        return reply.records

    def _query(self, broker: str, timeout_s: float) -> WriterState:
        state: WriterState = self._call(broker, "QueryWriter", WriterName(writer=self.writer), timeout_s)
        return state

    def _query_silent(self, broker: str, timeout_s: float) -> WriterState:
        try:
            return self._query(broker, timeout_s)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"writer {self.writer}: no living broker group knows it, and {broker} may: start {broker}, or run "
                f"penstock cluster forget {broker} if it is gone for good ({error})"
            ) from error

    def at_master(self, broker: str, method: str, request: object) -> Any:
        """The answer of the broker group's master, which is waited for. Raises as :func:`patiently`."""
        return patiently(
            lambda turn_s: self._call(broker, method, request, turn_s), self._timeout_s, f"writer {self.writer}"
        )

    def _call(self, broker: str, method: str, request: object, timeout_s: float) -> Any:
        return self._calls.at_master(broker, method, request, timeout_s, service=StagingStub)
