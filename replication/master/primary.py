"""The master of a broker group: streams its log to slaves and knows what they have."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.formats.epochs import Epoch
from penstock.proto.errors import BrokerUnavailable, FlowControl, InvalidArgument, PenstockError, WrongCluster
from penstock.proto.register import NOBODY
from penstock.proto.wire import common_pb2
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.data.port import Link

from .. import frames
from ..admission import name_of, starting_offset, tail_of
from ..config import ReplicationConfig
from ..epochs import EpochHistory
from ..interfaces import ReplicaLog
from ..notices import Notices
from .progress import Progress, ReplicaProgress
from .shipping import STAMPS_PER_S, SlaveStream
from .waiters import OffsetWaiters

log = logging.getLogger(__name__)

REPLICAS_MAX = 64


class Primary:
    """Ships the log to every slave that connects and computes the confirm offset. Event loop only.

    ``initial_confirm`` is a confirm offset known from before a restart (the store's checkpoint), or heard as a slave;
    the confirm offset starts there and grows when slaves report. So with synchronous replication and no slave in
    sight, consumers see what was confirmed at the last checkpoint and sends are refused; what was acknowledged after
    that checkpoint is in the log and becomes visible as soon as a slave has said that it has it too. An elected master
    need not hear that of its ``source``, which has the log up to the epoch's start: of two members the one that is
    left shows everything that its master shipped to it, at once.
    """

    def __init__(
        self,
        identity: common_pb2.BrokerIdentity,
        log: ReplicaLog,
        config: ReplicationConfig,
        *,
        epoch: int,
        on_confirm: Callable[[int], None],
        on_commits: Callable[[frames.Commits], None],
        initial_confirm: int = 0,
        epochs: EpochHistory | None = None,
        clock: Clock | None = None,
        on_answer: Callable[[int, float], None] | None = None,
        members: frozenset[int] | None = None,
        needed: int = 0,
        source: int = NOBODY,
    ) -> None:
        """``on_answer(broker id, time)``: a slave has answered a frame that was sent at that time.

        ``members``, ``needed``: where masters are elected, as in :meth:`require`, from the first moment on;
        ``source``: as in :class:`Progress`.

        Calls ``on_confirm`` at once when something is confirmed already.

        ``epochs`` is the log's history, ending with ``epoch``; by default this epoch began the log.
        """
        self._identity = identity
        self._log = log
        self._config = config
        self._epoch = epoch
        self._epochs = epochs or EpochHistory([Epoch(epoch, log.min_offset)])
        assert self._epochs.latest == epoch, f"epoch {epoch} with the history {self._epochs}"
        self._on_confirm = on_confirm
        self._on_commits = on_commits
        self._on_answer = on_answer
        self._clock = clock or SystemClock()
        self._notices = Notices(logging.getLogger(__name__), self._clock)
        if initial_confirm > log.end_offset:
            self._notices.warn(
                "shorter", f"log ended before the confirm offset confirm={initial_confirm} end={log.end_offset}"
            )
            initial_confirm = log.end_offset
        self._table = Progress(
            config,
            end=log.end_offset,
            flushed=log.flushed_offset,
            confirm=initial_confirm,
            epoch_start=self._epochs.latest_start,
            others=None if members is None else members - {identity.broker_id},
            needed=needed,
            source=source,
        )
        self._streams: dict[int, SlaveStream] = {}  # by broker id; living ones only
        self._waiters = OffsetWaiters()
        self._closed = False
        if self._table.confirm > 0:
            on_confirm(self._table.confirm)

    @property
    def confirm_offset(self) -> int:
        """Everything below is as safe as the mode promises; never goes back."""
        return self._table.confirm

    def on_appended(self) -> None:
        """The log grew: ship it."""
        if self._table.on_end(self._log.end_offset, self._clock.monotonic_s()):
            self._on_advanced()
        else:
            self._wake_all()

    def on_flushed(self, offset: int) -> None:
        """The master's own disk has everything below ``offset``."""
        if self._table.on_flushed(offset):
            self._on_advanced()

    def can_acknowledge(self) -> bool:
        """True if enough slaves are connected and in sync for an append to be confirmed in time."""
        if self._config.replicas_needed == 0:
            return True
        self._observe()
        return self._table.has_enough()

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        """True as soon as everything below ``end`` is confirmed; False when that took too long."""
        if end <= self._table.confirm:
            return True
        return False if self._closed else await self._waiters.wait(end, timeout_s)

    def require(self, members: frozenset[int], needed: int) -> None:
        """Masters are elected here: a byte is confirmed when all ``members`` have it, and they are ``needed``."""
        if self._table.require(self._identity.broker_id, members, needed):
            self._on_advanced()

    def observed(self) -> Progress:
        """How far each slave is, and who is in sync now."""
        self._observe()
        return self._table

    def replicas(self) -> list[ReplicaProgress]:
        """The slaves as last heard of, by id; those that are gone included."""
        return self.observed().replicas()

    def needed_from(self, patience_s: float) -> int | None:
        """What lies from here on, a slave still needs; one that left counts for ``patience_s``. None: nobody does."""
        return self._table.needed_from(self._clock.monotonic_s(), patience_s)

    def close(self) -> None:
        """End every stream and let every waiter go unconfirmed; later streams are refused."""
        self._closed = True
        self._waiters.close()
        for stream in list(self._streams.values()):
            stream.leave("the master closed", BrokerUnavailable(f"master {name_of(self._identity)} is closing"))

    def admit(self, content: bytes | memoryview, link: Link) -> SlaveStream:
        """The stream of the slave at ``link``, whose hello is ``content``.

        Raises:
            WrongCluster, WrongStore, NotMaster, InvalidArgument: the slave is refused.
        """
        hello = frames.decode_report(content)
        if not isinstance(hello, frames.Hello):
            raise InvalidArgument(f"the first report must be a hello, not {type(hello).__name__.lower()}")
        try:
            return self._admit(hello, link)
        except PenstockError as error:
            self._notices.warn(
                f"refused {hello.identity.broker_id}",
                f"slave refused id={hello.identity.broker_id} error={type(error).__name__}: {error}",
            )
            raise

    def _admit(self, hello: frames.Hello, link: Link) -> SlaveStream:
        if self._closed:
            raise BrokerUnavailable(f"master {name_of(self._identity)} is closing")
        start = starting_offset(hello, self._identity, self._epochs, self._log)
        peer = hello.identity
        self._replace(hello)
        self._make_room(peer.broker_id)
        now = self._clock.monotonic_s()
        replica = self._table.connect(
            peer.broker_id, peer.address, start, now, learner=hello.learner, syncs=hello.syncs
        )
        stream = SlaveStream(
            replica,
            hello.store_instance,
            self._welcome(start),
            self,
            link,
            log=self._log,
            table=self._table,
            config=self._config,
            epoch=self._epoch,
            clock=self._clock,
        )
        self._streams[peer.broker_id] = stream
        log.info(
            "slave connected slave=%s address=%s start=%d end=%d", name_of(peer), peer.address, start, self._table.end
        )
        return stream

    def _replace(self, hello: frames.Hello) -> None:
        """End the older stream of a slave that comes again; refuse a second slave of its id."""
        peer, older = hello.identity, self._streams.get(hello.identity.broker_id)
        if older is None:
            return
        if older.replica.address != peer.address and older.store_instance != hello.store_instance:
            raise WrongCluster(
                f"a slave {name_of(peer)} at {older.replica.address} is connected already: "
                f"give the one at {peer.address} another brokerId"
            )
        older.leave("replaced", BrokerUnavailable(f"slave {name_of(peer)} has connected again"))

    def _make_room(self, broker_id: int) -> None:
        known = self._table.replicas()
        if len(known) < REPLICAS_MAX or any(replica.broker_id == broker_id for replica in known):
            return
        gone = [replica for replica in known if not replica.connected]
        if not gone:
            raise FlowControl(f"{len(known)} slaves are connected: no more are allowed")
        self._table.forget(gone[0].broker_id)

    def _welcome(self, start: int) -> bytes:
        tail_bytes, tail_crc = tail_of(self._log, start)
        header = frames.Welcome(
            identity=self._identity,
            epochs=frames.wire_epochs(self._epochs),
            start_offset=start,
            segment_bytes=self._log.segment_bytes,
            flush_acknowledged=self._config.flush_acknowledged,
            sync=self._config.sync,
            tail_bytes=tail_bytes,
            tail_crc=tail_crc,
            min_offset=self._log.min_offset,
        )
        return frames.welcome(header, epoch=self._epoch, confirm=self._table.confirm, end=self._log.end_offset)

    def on_report(self, report: frames.Report, stream: SlaveStream) -> None:
        """A slave reports. Raises InvalidArgument: it cannot be true."""
        if not stream.replica.connected:
            return
        if isinstance(report, frames.Ack):
            if report.epoch != self._epoch:
                raise InvalidArgument(f"acknowledgement of epoch {report.epoch}, this master's is {self._epoch}")
            if report.stamp > stream.replica.stamped:
                raise InvalidArgument(
                    f"acknowledgement of a frame stamped {report.stamp}, the newest is {stream.replica.stamped}"
                )
            now = self._clock.monotonic_s()
            if report.stamp and self._on_answer is not None:
                self._on_answer(stream.replica.broker_id, report.stamp / STAMPS_PER_S)
            if self._table.on_ack(stream.replica, report.written_offset, report.flushed_offset, now):
                self._on_advanced()
            self._observe()
            stream.wake()  # the window has room
        elif isinstance(report, frames.Commits):
            self._take_commits(report, stream)
        elif isinstance(report, frames.Leaving):
            stream.leave(report.message)
        else:
            raise InvalidArgument("a second hello on one stream")

    def _take_commits(self, report: frames.Commits, stream: SlaveStream) -> None:
        try:
            self._on_commits(report)
        except PenstockError as error:  # the slave offers them again; replication must not stop for them
            self._notices.warn(
                f"commits {stream.replica.broker_id}",
                f"commits not taken over error={type(error).__name__}: {error}",
                group=report.group,
            )

    def _on_advanced(self) -> None:
        confirm = self._table.confirm
        self._on_confirm(confirm)
        self._waiters.on_reached(confirm)
        self._wake_all()

    def _wake_all(self) -> None:
        for stream in self._streams.values():
            stream.wake()

    def _observe(self) -> None:
        for replica in self._table.refresh(self._clock.monotonic_s()):
            if replica.in_sync:
                log.info("slave in sync id=%d written=%d", replica.broker_id, replica.written)
            else:
                log.warning(
                    "slave out of sync id=%d written=%d lag_bytes=%d",
                    replica.broker_id,
                    replica.written,
                    replica.lag_bytes,
                )

    def on_end(self, stream: SlaveStream, because: str, error: Exception | None) -> None:
        """A stream has ended: count its slave no more."""
        replica = stream.replica
        self._table.disconnect(replica, because)
        if self._streams.get(replica.broker_id) is stream:
            del self._streams[replica.broker_id]
        stream.end(error)
        enough = self._config.replicas_needed == 0 or self._table.has_enough()
        self._notices.warn(
            f"left {replica.broker_id}",
            f"slave left id={replica.broker_id} address={replica.address} can_acknowledge={enough} reason={because}",
            written=replica.written,
        )
