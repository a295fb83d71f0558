"""The slave's end of one stream: what its frames must be, and what is reported about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument
from penstock.runtime.clock import Clock
from penstock.runtime.data.peer import DataPeer

from .. import frames
from ..config import ReplicationConfig
from ..interfaces import ReplicaLog

COMMITS_REPEAT_S = 1.0


class MasterLine:
    """The connection to a master's data port: one request for REPLICATE, which stands.

    Each of its methods raises BrokerUnavailable when it broke.
    """

    def __init__(self, peer: DataPeer) -> None:
        self._peer = peer

    async def say(self, report: bytes) -> None:
        """Report; return when the connection takes more."""
        await self._peer.send(1, Method.REPLICATE, report)

    async def hear(self) -> memoryview:
        """The master's next message, which is gone at the next call. Raises what ended or refused the stream."""
        return (await self._peer.receive()).content

    async def ping(self) -> None:
        """Show that this slave lives while it has nothing to report."""
        await self._peer.send(0, Method.PING)


class MasterStream:
    """Checks frames and decides when to acknowledge; one per connection."""

    def __init__(
        self, log: ReplicaLog, config: ReplicationConfig, *, epoch: int, flush_acknowledged: bool, clock: Clock
    ) -> None:
        self.epoch = epoch
        self.flush_acknowledged = flush_acknowledged
        self._log = log
        self._clock = clock
        self._segment_bytes = log.segment_bytes
        self._written_step = config.window_bytes // 8  # keeps the window open while a sync takes long
        self._far_bytes = config.window_bytes // 2
        self._is_far_behind = False
        self._alive_s = config.heartbeat_interval_ms / 2000
        self._stamp = 0  # of the newest frame taken in
        self._acked_written = -1
        self._acked_flushed = -1
        self._flushed = min(log.flushed_offset, log.end_offset)
        self._acked_at = -1.0
        self._commits_at = -1.0
        self._commits_sent: list[bytes] = []
        self._wake = asyncio.Event()
        self._stopped = False

    def check(self, frame: frames.Frame) -> None:
        """Refuse a frame that does not continue the log.

        Raises:
            InvalidArgument: lost, repeated, reordered, of another epoch, across a file, or a second welcome.
        """
        if frame.welcome is not None:
            raise InvalidArgument("a second welcome on one stream")
        if frame.epoch != self.epoch:
            raise InvalidArgument(f"frame of epoch {frame.epoch} on a stream of epoch {self.epoch}")
        if frame.start != self._log.end_offset:
            raise InvalidArgument(f"frame begins at {frame.start}, the own log ends at {self._log.end_offset}")
        if len(frame.data) > self._segment_bytes - frame.start % self._segment_bytes:
            raise InvalidArgument(
                f"frame [{frame.start}, {frame.start + len(frame.data)}) crosses a log file of {self._segment_bytes}"
            )

    def on_frame(self, master_end: int, stamp: int = 0) -> None:
        """Note a frame of a master whose log ends at ``master_end``; acknowledge it when that is due."""
        self._is_far_behind = master_end - self._log.end_offset > self._far_bytes
        self._stamp = stamp
        if self._ack_due():
            self._wake.set()

    def on_flushed(self, offset: int) -> None:
        """The own disk has everything below ``offset``."""
        self._flushed = max(self._flushed, offset)
        self._wake.set()

    def stop(self) -> None:
        """Let :meth:`report` end after what it is writing."""
        self._stopped = True
        self._wake.set()

    async def report(self, line: MasterLine, pending_commits: Callable[[], list[frames.Commits]]) -> None:
        """Write acknowledgements and commits until the stream ends; acknowledgements that wait are merged."""
        while not self._stopped:
            self._wake.clear()
            for message in self._commits_due(pending_commits):
                await line.say(message)
            if self._ack_due():
                await line.say(self._ack())
            else:
                await self._wake.wait()

    def _ack_due(self) -> bool:
        """True if the master should hear where this slave is.

        Where only synced bytes count, written ones alone are not worth a message each, nor where this slave has far
        to catch up and nobody waits for them: they are reported with the sync, or when many have come, or to show
        that this slave lives.
        """
        written = self._log.end_offset
        return not self._stopped and (
            min(self._flushed, written) > self._acked_flushed
            or (written > self._acked_written and not (self.flush_acknowledged or self._is_far_behind))
            or written - self._acked_written >= self._written_step
            or self._clock.monotonic_s() - self._acked_at >= self._alive_s
        )

    def _ack(self) -> bytes:
        self._acked_written = self._log.end_offset
        self._acked_flushed = min(self._flushed, self._acked_written)
        self._acked_at = self._clock.monotonic_s()
        return frames.ack(self.epoch, self._acked_written, self._acked_flushed, stamp=self._stamp)

    def _commits_due(self, pending_commits: Callable[[], list[frames.Commits]]) -> list[bytes]:
        now = self._clock.monotonic_s()
        if now - self._commits_at < self._alive_s:
            return []
        messages = [frames.commits(commits) for commits in pending_commits()]
        if messages == self._commits_sent and now - self._commits_at < COMMITS_REPEAT_S:
            return []
        self._commits_at = now
        self._commits_sent = messages
        return messages
