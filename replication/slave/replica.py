"""A slave: follows its master's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from penstock.proto.errors import (
    BrokerUnavailable,
    InvalidArgument,
    NotMaster,
    PenstockError,
    StorageError,
    from_rpc_error,
)
from penstock.proto.wire import common_pb2
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.data_pb2_grpc import BrokerDataStub
from penstock.runtime.channel import open_async_channel
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.data.link import PING_S
from penstock.runtime.data.peer import connect
from penstock.runtime.security.credentials import PLAIN, Security

from .. import frames
from ..admission import Joining, check_welcome, is_empty, name_of, tail_of
from ..config import ReplicationConfig
from ..epochs import EpochsInMemory
from ..interfaces import EpochStore, SlaveLog
from ..master.progress import level_from
from ..notices import Notices
from .following import MasterLine, MasterStream

log = logging.getLogger(__name__)

FAREWELL_S = 1.0


def backoff_s(attempt: int, config: ReplicationConfig, fraction: float) -> float:
    """The pause before connection ``attempt`` (from 0): doubling, capped, and spread by ``fraction`` in [0, 1)."""
    ceiling_ms = min(config.reconnect_max_ms, config.reconnect_min_ms << min(attempt, 20))
    return (config.reconnect_min_ms + (ceiling_ms - config.reconnect_min_ms) * fraction) / 1000


class Replica:
    """Appends its master's log bytes to its own log, at the same offsets. Event loop only.

    ``on_appended`` is called after the log grew, ``on_confirm`` with the master's confirm offset as far as the
    own log reaches; it only rises. ``pending_commits`` returns the offsets that groups committed here and that
    have not come back in the log yet; it is asked at each connection and every heartbeat, and what it returns
    is offered to the master again until it returns it no more.
    """

    def __init__(
        self,
        identity: common_pb2.BrokerIdentity,
        log: SlaveLog,
        *,
        on_appended: Callable[[], None],
        on_confirm: Callable[[int], None],
        pending_commits: Callable[[], list[frames.Commits]],
        config: ReplicationConfig | None = None,
        epochs: EpochStore | None = None,
        initial_confirm: int = 0,
        store_instance: str | None = None,
        clock: Clock | None = None,
        security: Security = PLAIN,
    ) -> None:
        """``epochs``: where the log's history is kept; it becomes the master's before anything is appended."""
        self._identity = identity
        self._log = log
        self._on_appended = on_appended
        self._on_confirm = on_confirm
        self._pending_commits = pending_commits
        self._config = config or ReplicationConfig()
        self._epochs: EpochStore = epochs or EpochsInMemory()
        self._store_instance = store_instance or uuid.uuid4().hex
        self._clock = clock or SystemClock()
        self._security = security
        self._notices = Notices(logging.getLogger(__name__), self._clock)
        self.on_unheard: Callable[[], None] = lambda: None
        """Called when the stream of a master has ended."""
        self._stream: MasterStream | None = None
        self._moved = False
        self._confirm = initial_confirm
        self._master_end = 0
        self.last_error: PenstockError | None = None
        """Why the last stream ended or was refused; None while connected."""
        self._floor = 0
        self._unclean_epoch = 0
        self._master_confirm = 0
        self.has_been_level = False
        """True once this log has had everything acknowledged, by a connected master and those before it."""
        self.heard_at = -math.inf
        """When the last frame of a master came, by the monotonic clock."""
        self.last_loss = ""
        """What this log gave up, and why, when it last had to become a beginning of its master's; empty: nothing."""

    @property
    def connected(self) -> bool:
        """True if a master has welcomed this slave and is heard."""
        return self._stream is not None

    @property
    def confirm_offset(self) -> int:
        """The confirm offset as last given to ``on_confirm``."""
        return self._confirm

    @property
    def lag_bytes(self) -> int:
        """The bytes that the own log lacked when the master was last heard."""
        return max(0, self._master_end - self._log.end_offset)

    def on_flushed(self, offset: int) -> None:
        """The own disk has everything below ``offset``: tell the master."""
        if self._stream is not None:
            self._stream.on_flushed(min(offset, self._log.flushed_offset))  # the call may be older than a cut
            self._look_level(self._stream)

    def require_epoch(self, epoch: int) -> None:
        """Answer no master of an epoch below this from now on: a newer one is known."""
        self._floor = max(self._floor, epoch)
        if self._stream is not None and self._stream.epoch < self._floor:
            self._stream.stop()

    def accept_loss(self, epoch: int) -> None:
        """The group's register gave up what only its sync-state set had, for a master of ``epoch``; 0: it never did."""
        self._unclean_epoch = max(self._unclean_epoch, epoch)

    async def follow(self, address: str, data_port: int = 0) -> None:
        """Follow the master at ``address`` until cancelled: connect, append, and connect again.

        ``data_port``: of that host; 0: the master is asked for it. Every error ends one stream and never this; a
        refusal is logged by name and tried again, since the cause may be mended at the other end.
        """
        attempt = 0
        while True:
            self._moved = False
            started = self._clock.monotonic_s()
            try:
                await self._follow_once(address, data_port)
            except PenstockError as error:
                self.last_error = error
                self._notices.warn(
                    "stream", f"replication interrupted master={address} error={type(error).__name__}: {error}"
                )
            lived_s = self._clock.monotonic_s() - started
            attempt = 0 if self._moved or lived_s * 1000 > self._config.reconnect_max_ms else attempt + 1
            pause_s = backoff_s(attempt, self._config, random.random())  # noqa: S311  jitter
            if isinstance(self.last_error, StorageError):
                pause_s = self._config.reconnect_max_ms / 1000  # the cause lasts, and each attempt brings bytes anew
            await asyncio.sleep(pause_s)

    async def _follow_once(self, address: str, data_port: int) -> None:
        """One stream, to its end; always raises."""
        async with self._patience(address):
            peer = await connect(address, data_port or await self._data_port(address), self._security)
        try:
            await self._converse(MasterLine(peer), address)
        finally:
            peer.close()

    async def _data_port(self, address: str) -> int:
        """Where a master that no nameserver told of has its data port."""
        async with open_async_channel(address, self._security) as channel:
            stub: Any = BrokerDataStub(channel)  # type: ignore[no-untyped-call]  # generated code
            try:
                return int((await stub.Open(Empty())).port)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, address) from error

    async def _converse(self, line: MasterLine, address: str) -> None:
        stream = await self._introduce(line, address)
        reports = asyncio.create_task(stream.report(line, self._pending_commits), name=f"reports to {address}")
        self._stream = stream
        self.last_error = None
        log.info(
            "master found address=%s epoch=%d start=%d behind_bytes=%d",
            address,
            stream.epoch,
            self._log.end_offset,
            self.lag_bytes,
        )
        try:
            while not reports.done():
                frame = await self._frame(line, address)
                self._check_epoch(stream.epoch, address)
                self._take(frame, stream)
            await reports  # raises: it ends by itself only when the stream broke
        except StorageError as error:
            await self._bid_farewell(line, stream, reports, error)
            raise
        finally:
            self._stream = None
            self.on_unheard()
            reports.cancel()
            await asyncio.gather(reports, return_exceptions=True)

    async def _introduce(self, line: MasterLine, address: str) -> MasterStream:
        """Say hello, and check and obey the welcome."""
        await self._log.recover()
        end = 0 if is_empty(self._log) else self._log.end_offset
        tail_bytes, tail_crc = tail_of(self._log, end)
        hello = frames.Hello(
            identity=self._identity,
            epochs=frames.wire_epochs(self._epochs.history),
            end_offset=end,
            store_instance=self._store_instance,
            tail_bytes=tail_bytes,
            tail_crc=tail_crc,
            learner=self._config.learner,
            syncs=self._config.flush_acknowledged,
        )
        async with self._patience(address):
            await line.say(frames.hello(hello))
        frame = await self._frame(line, address)
        if frame.welcome is None:
            raise InvalidArgument(f"master at {address}: its first frame is no welcome")
        if frames.epochs_of(frame.welcome).latest != frame.epoch:
            raise InvalidArgument(f"master at {address}: its frame is of epoch {frame.epoch}, its history of another")
        self._check_epoch(frame.epoch, address)
        async with _pinging(line):
            await self._join(frame.welcome, master_end=frame.end)
        self._check_epoch(frame.epoch, address)  # joining may have taken a while
        stream = MasterStream(
            self._log,
            self._config,
            epoch=frame.epoch,
            # By its own mode too: after a loss of power it would not say that it may lack what was not synced.
            flush_acknowledged=frame.welcome.flush_acknowledged
            or (frame.welcome.sync and self._config.flush_acknowledged),
            clock=self._clock,
        )
        self._hear(frame, stream)
        return stream

    def _check_epoch(self, epoch: int, address: str) -> None:
        if epoch < self._floor:
            raise NotMaster(
                f"master at {address} is of epoch {epoch}, a newer one is known: {self._floor}", epoch=self._floor
            )

    async def _join(self, welcome: frames.Welcome, *, master_end: int) -> None:
        """Make the own log a beginning of the master's, and the own history the master's; durable on return."""
        own, start = self._log, welcome.start_offset
        joining = check_welcome(
            welcome,
            self._identity,
            self._epochs.history,
            own,
            master_end=master_end,
            sync=self._config.sync,
            unclean_epoch=self._unclean_epoch,
        )
        master = name_of(welcome.identity)
        if joining is Joining.BEGIN:
            log.info("empty log begins at the master's minimum offset=%d", start)
            await own.start_over(start)  # also if it ends there: tables of before may have outlived its bytes
        elif joining is Joining.START_OVER:
            self.last_loss = f"[{own.min_offset}, {own.end_offset}): older than the minimum of {master}, {start}"
            log.warning(
                "log older than the master's minimum, starting over had=[%d, %d) master=%s minimum=%d",
                own.min_offset,
                own.end_offset,
                master,
                start,
            )
            await own.start_over(start)
        elif joining is Joining.CUT:
            known = own.confirm_offset  # remembered: more may have been acknowledged
            acknowledged = max(0, known - start)
            self.last_loss = (
                f"[{start}, {own.end_offset}): {master} never had it; {acknowledged} bytes acknowledged, as far as is "
                f"known here, which is up to {known}"
            )
            log.log(
                logging.ERROR if acknowledged else logging.WARNING,
                "log parts from the master's, cut to the common end cut=[%d, %d) known_acknowledged_bytes=%d "
                "known_confirm=%d master=%s",
                start,
                own.end_offset,
                acknowledged,
                known,
                master,
            )
            await own.truncate_to(start)
        assert own.end_offset == start, f"the log ends at {own.end_offset}, the master begins at {start}"
        if joining is not Joining.GO_ON:
            self._confirm = min(self._confirm, own.confirm_offset)
        theirs = frames.epochs_of(welcome)
        if theirs.entries:
            self._epochs.replace(theirs)

    async def _frame(self, line: MasterLine, address: str) -> frames.Frame:
        async with self._patience(address):
            return frames.decode_frame(await line.hear())

    @contextlib.asynccontextmanager
    async def _patience(self, address: str) -> AsyncIterator[None]:
        timeout_s = self._config.master_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise BrokerUnavailable(f"{address}: nothing heard from the master for {timeout_s} s") from None

    def _take(self, frame: frames.Frame, stream: MasterStream) -> None:
        """Append one frame's bytes, if it has any, exactly at the end of the log."""
        stream.check(frame)
        if len(frame.data):
            end = self._log.append_bytes(frame.start, frame.data)
            assert end == frame.start + len(frame.data) == self._log.end_offset, f"appended up to {end}"
            self._moved = True
            self._on_appended()
            if stream.flush_acknowledged:
                self._log.request_flush(end)
        self._hear(frame, stream)

    def _look_level(self, stream: MasterStream) -> None:
        # Synced, where only that counts.
        end = self._log.flushed_offset if stream.flush_acknowledged else self._log.end_offset
        if end >= level_from(self._master_confirm, self._epochs.history.latest_start):
            self.has_been_level = True

    def _hear(self, frame: frames.Frame, stream: MasterStream) -> None:
        self._master_end = frame.end
        confirm = min(frame.confirm, self._log.end_offset)
        if confirm > self._confirm:
            self._confirm = confirm
            self._on_confirm(confirm)
        self._master_confirm = frame.confirm
        self._look_level(stream)
        self.heard_at = self._clock.monotonic_s()
        stream.on_frame(frame.end, frame.stamp)

    async def _bid_farewell(
        self, line: MasterLine, stream: MasterStream, reports: asyncio.Task[None], failure: StorageError
    ) -> None:
        """Tell the master why this slave leaves, so that it says so and not only that a connection broke."""
        self._stream = None
        said = f"slave cannot append slave={name_of(self._identity)} error={type(failure).__name__}: {failure}"
        self._notices.warn("append", said, logging.ERROR)
        with contextlib.suppress(TimeoutError, PenstockError):
            async with asyncio.timeout(FAREWELL_S):
                stream.stop()
                await asyncio.wait({reports})  # what it is saying comes before
                await line.say(frames.leaving(failure))
                while True:  # the master ends the stream when it has read it
                    await line.hear()


@contextlib.asynccontextmanager
async def _pinging(line: MasterLine) -> AsyncIterator[None]:
    """Let the master know during the block that this slave lives, though it reports nothing."""

    async def ping() -> None:
        while True:
            await asyncio.sleep(PING_S)
            await line.ping()

    pinging = asyncio.create_task(ping(), name="pings to the master")
    try:
        yield
    finally:
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)
