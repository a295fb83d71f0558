"""One broker from start to stop, inside a running event loop.

Start: port → store (recovery) → snapshots and replay → role → services → registration.
Stop: out of the routes → refuse new work → let what runs finish → last dispatch → snapshots → close the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from penstock.proto.errors import PenstockError, StorageError, WrongCluster

from .config import BrokerConfig
from .parts import Parts
from .startup import open_port, open_store

log = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
REFUSED_S = 5.0
LAST_DISPATCH_S = 1.0
FOLLOW_LOOK_S = 0.01


class Broker:
    """One running broker."""

    def __init__(self, config: BrokerConfig, parts: Parts) -> None:
        """``config``: with the port that was opened."""
        self.config = config
        self.parts = parts
        self._failed: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        self._store_failed = False
        parts.on_refused = self.on_refused

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.config.advertised_address

    def on_fatal(self, error: StorageError) -> None:
        """The store failed for good: acknowledge nothing any more, and end the process."""
        self.parts.send.is_open = False
        self.parts.acknowledgements.fail(error)
        self._store_failed = True
        if not self._failed.done():
            self._failed.set_result(error)

    def on_refused(self, error: PenstockError) -> None:
        """A nameserver refuses this broker: without any that takes it, it is set up wrongly and ends.

        Not at once, since a broker that moved to another port is refused until its old self is forgotten.
        """
        if isinstance(error, WrongCluster):
            asyncio.get_running_loop().call_later(REFUSED_S, self._end_unless_registered, error)

    def _end_unless_registered(self, error: PenstockError) -> None:
        if self.parts.registration.registered == 0 and not self._failed.done():
            self._failed.set_result(error)

    async def run(self) -> None:
        """Do the background work until cancelled; raises what makes it impossible."""
        parts = self.parts
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(parts.dispatcher.run(), name="dispatch")
                tasks.create_task(parts.snapshots.run(lambda: parts.store.dispatched_offset), name="snapshots")
                tasks.create_task(parts.role.run(), name="role")
                tasks.create_task(parts.retention.run(), name="retention")
                tasks.create_task(parts.staging.run(), name="staging")
                tasks.create_task(parts.timers.run(), name="timers")
                tasks.create_task(parts.registration.run(), name="registration")
                raise await self._failed
        except BaseExceptionGroup as group:
            error = group.exceptions[0]
            if isinstance(error, StorageError):
                self.on_fatal(error)
            raise error from None

    async def hand_over(self) -> None:
        """Before a stop: where masters are elected and this is one, make a slave master; return when it is followed.

        Where none can take over, or anything goes wrong, nothing is lost by it: an election follows the stop.
        """
        leadership = self.parts.leadership
        if leadership is None:
            return
        try:
            register = await leadership.hand_over_to_any()
        except PenstockError as error:
            log.warning("not handed over before the stop error=%s: %s", type(error).__name__, error)
            return
        while register is not None and not self.parts.role.following.is_following:  # noqa: ASYNC110  for a moment
            await asyncio.sleep(FOLLOW_LOOK_S)

    async def _acknowledge_rest(self) -> None:
        """Let what was appended reach the disk and the slaves that its senders wait for, for as long as is granted."""
        if self.parts.role.is_master and not self._store_failed:
            with contextlib.suppress(StorageError):
                await self.parts.acknowledgements.wait(self.parts.store.appended_offset, STOP_GRACE_S)

    async def stop(self) -> None:
        """Refuse new work, let requests finish, and make everything durable. ``run`` has ended before."""
        parts = self.parts
        parts.send.is_open = False
        parts.fetch.close()
        parts.sessions.close()
        stopping = asyncio.create_task(parts.server.stop(STOP_GRACE_S))
        await parts.appends.close()
        await self._acknowledge_rest()
        parts.role.close()  # a slave's stream ends only here, and the server waits for it
        await stopping
        if parts.metrics is not None:
            await asyncio.to_thread(parts.metrics.stop)
        if not self._store_failed:
            deadline = time.monotonic() + LAST_DISPATCH_S
            while time.monotonic() < deadline and parts.dispatcher.dispatch_slice():
                pass
            parts.snapshots.write_all(parts.store.dispatched_offset)
        parts.store.close()


@contextlib.asynccontextmanager
async def serving(config: BrokerConfig, interceptors: Sequence[Any] = ()) -> AsyncIterator[Broker]:
    """A running broker for the length of the ``with`` block. ``interceptors`` stand in front of all that it serves.

    When a background task fails, the body is cancelled and the failure comes out of the block.

    Raises:
        ConfigError: port, directory or setting is wrong.
        StoreLocked, WrongStore, Corrupt, DiskFull: the store cannot be opened.
    """
    async with open_port(config, interceptors) as (server, port):
        config = config.with_port(port)
        with open_store(config) as opened:
            parts = Parts.assemble(config, opened, server, uuid.uuid4().hex)
            broker = Broker(config, parts)
            parts.listen_to_store(asyncio.get_running_loop(), broker.on_fatal)
            try:
                await parts.start()
                async with _background(broker):
                    yield broker
            finally:
                await broker.stop()


@contextlib.asynccontextmanager
async def _background(broker: Broker) -> AsyncIterator[None]:
    """``broker.run`` beside the body; the first of the two that fails ends the other."""
    body = asyncio.current_task()
    assert body is not None
    work = asyncio.create_task(broker.run(), name="broker")

    def end_body(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            body.cancel()

    work.add_done_callback(end_body)
    try:
        yield
    except asyncio.CancelledError:
        if work.done() and not work.cancelled() and (error := work.exception()) is not None:
            body.uncancel()
            raise error from None
        raise
    finally:
        work.remove_done_callback(end_body)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
