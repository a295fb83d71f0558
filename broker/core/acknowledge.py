"""Waiting until a log position is as safe as the mode promises: committed or synced here, confirmed by replicas."""

from __future__ import annotations

import asyncio

from penstock.proto.errors import OutcomeUnknown, StorageError
from penstock.proto.wire import broker_pb2
from penstock.replication.master.waiters import OffsetWaiters

from ..config import BrokerConfig
from ..store.config import FlushMode
from ..store.store import Store
from .role import Role

SEND_OK = broker_pb2.SEND_OK
FLUSH_DISK_TIMEOUT = broker_pb2.FLUSH_DISK_TIMEOUT
FLUSH_SLAVE_TIMEOUT = broker_pb2.FLUSH_SLAVE_TIMEOUT


class Acknowledgements:
    """Waits for flush and replication of appended bytes; event loop only.

    Both go on at the same time: the flush is asked for before anything is awaited and replication ships by
    itself, so waiting for one after the other takes as long as the slower one. With a transient store pool, which does
    not go with SYNC_FLUSH, a commit is waited for in place of the flush: before it the bytes go with the process.
    """

    def __init__(self, config: BrokerConfig, store: Store, role: Role) -> None:
        self._store = store
        self._role = role
        self._sync_flush = config.store.flush_mode is FlushMode.SYNC_FLUSH
        self.waits_for_commit = config.uses_transient_store_pool
        assert not (self._sync_flush and self.waits_for_commit), "no pool where appends wait for the disk"
        self._flush_timeout_s = config.appends.flush_timeout_ms / 1000
        self._replica_timeout_s = config.replication.slave_timeout_ms / 1000
        self._waiters = OffsetWaiters()
        self._failure: StorageError | None = None

    @property
    def is_immediate(self) -> bool:
        """True if appended already means acknowledged: ASYNC_FLUSH without synchronous replicas and without a pool."""
        waits_here = self._sync_flush or self.waits_for_commit
        return not waits_here and not self._role.waits_for_replicas and self._failure is None

    @property
    def waiting(self) -> int:
        """How many wait for a flush, or a commit."""
        return len(self._waiters)

    def start(self, end: int) -> None:
        """Let the flush, or commit, of everything below ``end`` begin, where the mode asks for one."""
        if self._sync_flush or self.waits_for_commit:
            self._request(end)

    async def wait(
        self, end: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> broker_pb2.SendStatus:
        """How far the bytes below ``end`` got, at the latest when the time is up: they are stored in any case.

        ``timeout_s`` shortens the configured time-outs. When both are missed, the replicas' is told, as
        RocketMQ does. ``epoch``: in which they were appended; now, by default. In a later one of this broker's their
        place may hold the bytes of another master that was in between, so what is synced and confirmed says nothing.

        Raises SyncFailed: the disk failed, and the bytes may be safe or not.
        """
        if self._failure is not None:
            raise self._failure
        flush_s, replica_s = self._flush_timeout_s, self._replica_timeout_s
        if timeout_s is not None:
            flush_s, replica_s = min(flush_s, timeout_s), min(replica_s, timeout_s)
        epoch = self._role.epoch if epoch is None else epoch
        loop = asyncio.get_running_loop()
        started = loop.time()
        flushed = not (self._sync_flush or self.waits_for_commit) or await self._wait_here(end, flush_s)
        if self._role.waits_for_replicas:
            left_s = max(0.0, replica_s - (loop.time() - started))
            if not await self._role.wait_confirmed(end, left_s):
                return FLUSH_SLAVE_TIMEOUT
        if self._failure is not None:
            raise self._failure
        if not self._role.is_acting or self._role.epoch != epoch:
            return FLUSH_SLAVE_TIMEOUT  # another may be master by now: whether it has these bytes, the sender must ask
        return SEND_OK if flushed else FLUSH_DISK_TIMEOUT

    async def wait_committed(self, end: int, timeout_s: float | None) -> broker_pb2.SendStatus:
        """The same for somebody who waits neither for the disk nor for replicas. Raises SyncFailed: the disk failed."""
        timeout_s = self._flush_timeout_s if timeout_s is None else min(self._flush_timeout_s, timeout_s)
        is_settled = not self.waits_for_commit or await self._wait_here(end, timeout_s)
        return SEND_OK if is_settled else FLUSH_DISK_TIMEOUT

    async def safe(self, end: int, what: str, *, epoch: int | None = None) -> None:
        """Return when everything below ``end`` is acknowledged as the mode promises: nobody may act on less.

        ``epoch``: as of :meth:`wait`.

        Raises:
            OutcomeUnknown: disk or replicas did not confirm ``what`` in time; a disk that failed confirms nothing any
                more, and the next master may have it all the same.
        """
        if self.is_immediate:
            return
        try:
            status = await self.wait(end, epoch=epoch)
        except StorageError as error:
            raise OutcomeUnknown(f"{what}: done here, and not known to be safe: {error.message}: ask again") from error
        if status != SEND_OK:
            raise OutcomeUnknown(f"{what}: done here, {broker_pb2.SendStatus.Name(status)}: ask again")

    def on_committed(self, offset: int) -> None:
        """Everything below ``offset`` is in the log's files."""
        if self.waits_for_commit:
            self.on_flushed(offset)

    def on_flushed(self, offset: int) -> None:
        """Everything below ``offset`` is synced, or committed where that is waited for."""
        self._waiters.on_reached(offset)

    def fail(self, error: StorageError) -> None:
        """Acknowledge nothing any more: the store failed."""
        self._failure = error
        self._waiters.close()

    def _request(self, end: int) -> None:
        if self._sync_flush:
            self._store.request_flush(end)
        else:
            self._store.request_commit(end)

    async def _wait_here(self, end: int, timeout_s: float) -> bool:
        if self._failure is not None:
            raise self._failure
        if not self._is_here(end):
            self._request(end)
        is_here = self._is_here(end) or await self._waiters.wait(end, timeout_s)
        if not is_here and self._failure is not None:
            raise self._failure
        return is_here

    def _is_here(self, end: int) -> bool:
        return (self._store.flushed_offset if self._sync_flush else self._store.end_offset) >= end
