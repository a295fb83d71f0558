"""Brokers' stores and tables that replicate over links of a test's own making: no ports, no processes.

A node is what a broker is below its services: the store with its real files, the tables derived from the log, their
snapshots, the history of epochs, and either end of replication.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker.broker import FEATURES, make_core
from penstock.broker.config import BrokerConfig
from penstock.broker.core.journal import Journal
from penstock.broker.group.follower_log import FollowerLog
from penstock.broker.opening import Opened, open_store
from penstock.replication import Primary, Replica, ReplicationConfig
from penstock.runtime.clock import SystemClock
from tests.support.broker.kit import Writes
from tests.support.broker.running_broker import small_config
from tests.support.broker.stores import batch
from tests.support.replication.replicating import Pipe, Tamper, identity

SEGMENT_BYTES = 16384


class NodeRole:
    """What a node's journal asks of a role: the node does it."""

    waits_for_replicas = False

    def __init__(self, node: Node) -> None:
        self._node = node

    def on_appended(self) -> None:
        self._node.on_appended()


class Node(Writes):
    """One broker of a group, of which a test makes master or slave."""

    def __init__(self, root: Path, broker_id: int, config: ReplicationConfig, **settings: Any) -> None:
        self.broker_id = broker_id
        self.identity = identity(broker_id)
        self.replication = config
        self.broker_config: BrokerConfig = small_config(
            root / f"node-{broker_id}",
            **{
                "brokerClusterName": self.identity.cluster,
                "brokerName": self.identity.broker_name,
                "brokerId": broker_id or 9,
                "brokerRole": "SLAVE",
                "haMasterAddress": "127.0.0.1:1",
                "mappedFileSizeCommitLog": 128 << 10,
                "maxMessageSize": 2048,
                **settings,
            },
        )
        object.__setattr__(self.broker_config.store, "segment_bytes", SEGMENT_BYTES)  # less than a file may say
        self.primary: Primary | None = None
        self.replica: Replica | None = None
        self.on_cut: Callable[[], None] = lambda: None
        self.open()

    def open(self) -> None:
        """Open the store, as a broker's start does."""
        self._stack = contextlib.ExitStack()
        self.opened: Opened = self._stack.enter_context(open_store(self.broker_config, FEATURES))
        self.store, self.tables = self.opened.store, self.opened.tables
        self.snapshots = self.tables.files
        role: Any = NodeRole(self)
        core = make_core(self.broker_config, SystemClock(), self.store, self.tables, lambda events: role)
        self.dispatcher = core.dispatcher
        self.log = FollowerLog(self.store, self.tables, log_has_all=True, on_cut=lambda: self.on_cut())
        self.journal = Journal(core)
        loop = asyncio.get_running_loop()
        self.store.on_flushed = lambda offset: loop.call_soon_threadsafe(self._on_flushed, offset)
        self.catch_up()

    def kill(self) -> None:
        """End as a killed process does: nothing is written any more."""
        self.leave()
        self.store.abandon()
        self._stack.pop_all()  # the block never ends

    def close(self) -> None:
        """End as a stopped process does."""
        self.leave()
        self.snapshots.write_all(self.store.dispatched_offset)
        self.store.close()
        self._stack.close()

    def leave(self) -> None:
        """Be neither master nor slave."""
        if self.primary is not None:
            self.primary.close()
        self.primary = self.replica = None

    def lead(self, epoch: int) -> None:
        """Become master."""
        self.leave()
        end = self.store.cut_unfinished()
        self.opened.epochs.begin(epoch, end)
        self.primary = Primary(
            self.identity,
            self.store,
            self.replication,
            epoch=epoch,
            epochs=self.opened.epochs.history,
            on_confirm=self._on_confirm,
            on_commits=lambda commits: None,
            initial_confirm=self.store.confirm_offset,
        )

    def follow(self) -> Replica:
        """Become slave; the caller joins the two ends."""
        self.leave()
        self.replica = Replica(
            self.identity,
            self.log,
            on_appended=lambda: None,
            on_confirm=self._on_confirm,
            pending_commits=lambda: [],
            config=self.replication,
            epochs=self.opened.epochs,
            initial_confirm=self.store.confirm_offset,
        )
        return self.replica

    def append(self, topic: str, bodies: list[bytes], *, queue: int = 0, sequence: int = 0) -> int:
        """Messages at the master, as one batch; the log's new end."""
        mark = (7, 1, 0, sequence) if sequence else None
        self.store.append(topic, batch(topic, bodies, queue, mark=mark), queues=queue + 1)
        self.on_appended()
        return self.store.end_offset

    def catch_up(self) -> None:
        """Dispatch what is confirmed."""
        while self.dispatcher.dispatch_slice():
            pass

    def content(self) -> bytes:
        """The log's bytes, from its minimum on."""
        parts, at = [], self.store.min_offset
        while at < self.store.end_offset:
            part = self.store.read_bytes(at, 1 << 20)
            parts.append(bytes(part))
            at += len(part)
        return b"".join(parts)

    def content_of_tables(self) -> dict[str, Any]:
        """Everything derived from the log, to be compared with another node's."""
        state = self.tables
        return {
            "topics": {topic.name: topic.to_json() for topic in state.topics.values()},
            "groups": {group.name: group.to_json() for group in state.groups.values()},
            "offsets": {pair: state.offsets.row(*pair) for pair in sorted(state.offsets.pairs())},
            "producers": sorted(map(repr, state.producers.rows())),
            "queues": {
                (topic, queue_id): self.store.reader.queue_range(topic, queue_id)
                for topic, queue_ids in self.store.queues().items()
                for queue_id in queue_ids
                if self.store.reader.queue_range(topic, queue_id) != (0, 0)
            },
            "epochs": self.opened.epochs.history,
        }

    def on_appended(self) -> None:
        """The log has grown: replication and a flush begin."""
        if self.primary is not None:
            self.primary.on_appended()
        self.store.request_flush(self.store.end_offset)

    def _on_flushed(self, offset: int) -> None:
        if self.primary is not None:
            self.primary.on_flushed(offset)
        if self.replica is not None:
            self.replica.on_flushed(offset)

    def _on_confirm(self, offset: int) -> None:
        self.store.set_confirm(offset)
        self.catch_up()


async def joined(replica: Replica, primary: Primary, tamper: Tamper) -> None:
    """One connection, to its end; raises how it ended."""
    call = Pipe(primary, tamper)
    try:
        await replica._converse(call, "pipe")
    finally:
        call.close()
