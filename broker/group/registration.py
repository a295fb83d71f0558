"""The broker's life line to its nameservers: one session stream to each, for as long as the broker lives.

The stream's end takes the broker out of that nameserver's routes at once, so nothing is said at the end. A
nameserver that is away, restarted or frozen disturbs nothing but its own session, which is opened again and again
with at most a second between the attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.proto.errors import NameserverUnavailable, PenstockError, Refused, from_rpc_error
from penstock.proto.wire.common_pb2 import MASTER, TopicConfig
from penstock.proto.wire.coordination_pb2 import Register
from penstock.proto.wire.nameserver_pb2 import BrokerDirective, BrokerReport, ShardView
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_async_channel
from penstock.runtime.security.credentials import PLAIN, Security
from penstock.runtime.turns import tasks_together

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 1.0
WELCOME_TIMEOUT_S = 3.0
HEARTBEAT_INTERVAL_MS = 500
"""Until the nameserver announces another."""


@dataclass(eq=False)
class Registration:
    """Registers one broker with every nameserver of its list and keeps it registered.

    Everything runs on the event loop of :meth:`run`; the callbacks are called there and must not block.

    Args:
        describe: the whole registration; asked at each new session.
        heartbeat: offsets, role and epoch; asked at the interval that the nameserver announces.
        on_shard: the living members of the broker's group, at registration and after each change. Where the
            nameservers differ it is what all of them together know, see :func:`merge_shard_views`.
        on_refused: a nameserver refuses this broker, e.g. :class:`WrongCluster`; told once for each kind of error
            and nameserver, and tried again all the same. A broker that hears it at start should exit.
        on_register: the register of the group as a nameserver saw it last; perhaps there is a newer one.
    """

    addresses: Sequence[str]
    describe: Callable[[], BrokerReport.Registration]
    heartbeat: Callable[[], BrokerReport.Heartbeat]
    on_shard: Callable[[ShardView], None]
    on_refused: Callable[[PenstockError], None] = lambda error: None
    on_register: Callable[[Register], None] = lambda register: None
    security: Security = PLAIN

    def __post_init__(self) -> None:
        self._views: dict[str, ShardView] = {}  # what each connected nameserver said last
        self._told: ShardView | None = None
        self._sessions = [_Session(address, self) for address in self.addresses]

    async def run(self) -> None:
        """Stay registered with all nameservers until cancelled; then leave all of them at once."""
        async with asyncio.TaskGroup() as tasks:
            for session in self._sessions:
                tasks.create_task(session.run())

    async def settled(self) -> None:
        """Return when each nameserver has taken the broker, or could not be reached; who refuses is waited for."""
        for session in self._sessions:
            await session.is_settled.wait()

    def topics_changed(self, updated: list[TopicConfig], removed: list[str]) -> None:
        """Tell the nameservers, soon, that topics were made or changed, or are gone."""
        for session in self._sessions:
            session.topics_changed(updated, removed)

    def changed(self) -> None:
        """Send a heartbeat now: the role or the epoch is another."""
        for session in self._sessions:
            session.nudge()

    @property
    def registered(self) -> int:
        """How many nameservers have this broker in their routes now."""
        return len(self._views)

    def on_view(self, address: str, view: ShardView | None) -> None:
        """A nameserver said who lives in the group, or its session is over."""
        if view is None:
            self._views.pop(address, None)
        else:
            self._views[address] = view
        if not self._views:
            return  # nobody to ask: what was known last still holds
        merged = merge_shard_views(self._views.values())
        if merged != self._told:
            self._told = merged
            self.on_shard(merged)


def merge_shard_views(views: Iterable[ShardView]) -> ShardView:
    """What several nameservers know of one shard, together.

    A nameserver that has just started, or that a member cannot reach, knows fewer members; so a member counts when
    any nameserver sees it. Of two accounts of one member the one of the higher epoch is right, and of two in the
    same epoch the one that calls it master.
    """
    ordered = sorted(views, key=lambda view: view.epoch)
    accounts = [(view.epoch, member.role == MASTER, member) for view in ordered for member in view.members]
    members = {member.broker_id: member for *_, member in sorted(accounts, key=lambda account: account[:2])}
    merged = ShardView()
    merged.CopyFrom(ordered[-1])
    del merged.members[:]
    merged.members.extend(members[broker_id] for broker_id in sorted(members))
    return merged


class _Session:
    """The session with one nameserver."""

    def __init__(self, address: str, owner: Registration) -> None:
        self._address = address
        self._owner = owner
        self._interval_ms = HEARTBEAT_INTERVAL_MS
        self._wake = asyncio.Event()
        self._updated: dict[str, TopicConfig] = {}  # what the registration of this session did not hold yet
        self._removed: set[str] = set()
        self._failures = 0
        self._said = ""  # the last failure that was logged
        self.is_settled = asyncio.Event()  # accepted, or found to be away

    def topics_changed(self, updated: list[TopicConfig], removed: list[str]) -> None:
        for config in updated:
            self._removed.discard(config.topic)
            self._updated[config.topic] = config
        for topic in removed:
            self._updated.pop(topic, None)
            self._removed.add(topic)
        self._wake.set()

    def nudge(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Open sessions, one after the other, until cancelled."""
        while True:
            try:
                await self._serve()
                error: PenstockError = NameserverUnavailable(f"{self._address}: the session has ended")
            except PenstockError as caught:
                error = caught
            except asyncio.CancelledError:
                error = NameserverUnavailable(f"{self._address}: the call was cancelled")
            finally:
                self._owner.on_view(self._address, None)
            # gRPC raises CancelledError for its own reasons too, and an error of the ending stream can hide a real
            # cancellation: only the task itself knows.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError
            self._report(error)
            self._failures += 1
            delay_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._failures, 10))
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311  spreads reconnects, no secret

    def _report(self, error: PenstockError) -> None:
        """Log a failure when it is another than the last one; a nameserver may be away for hours."""
        if not isinstance(error, Refused):
            self.is_settled.set()
        said = f"{type(error).__name__}: {error}"
        if said == self._said:
            return
        self._said = said
        if isinstance(error, Refused):
            log.error("registration refused nameserver=%s error=%s", self._address, said)
            self._owner.on_refused(error)
        else:
            log.warning("nameserver session lost nameserver=%s error=%s", self._address, said)

    async def _serve(self) -> None:
        async with open_async_channel(self._address, self._owner.security) as channel:
            call = NameserverStub(channel).BrokerSession()  # type: ignore[no-untyped-call]  # generated code
            try:
                self._updated, self._removed = {}, set()
                await call.write(BrokerReport(registration=self._owner.describe()))
                async with asyncio.timeout(WELCOME_TIMEOUT_S):
                    first = await call.read()
                if not isinstance(first, BrokerDirective):  # the end of the stream
                    raise NameserverUnavailable(f"{self._address}: ended the session without a word")
                self._welcomed(first)
                await self._converse(call)
            except TimeoutError:
                raise NameserverUnavailable(f"{self._address}: no answer within {WELCOME_TIMEOUT_S} s") from None
            except grpc.RpcError as error:
                raise from_rpc_error(error, self._address) from None
            except asyncio.InvalidStateError:  # a write after the call's end; its status tells why it ended
                raise await self._end_of(call) from None
            finally:
                call.cancel()

    async def _end_of(self, call: Any) -> PenstockError:
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await call.read()
        except grpc.RpcError as error:
            return from_rpc_error(error, self._address)
        except (TimeoutError, asyncio.InvalidStateError):
            pass
        return NameserverUnavailable(f"{self._address}: the session has ended")

    def _welcomed(self, directive: BrokerDirective) -> None:
        log.info("broker registered nameserver=%s members=%d", self._address, len(directive.shard.members))
        self._failures, self._said = 0, ""
        self.is_settled.set()
        self._on_directive(directive)

    async def _converse(self, call: Any) -> None:
        """Report and listen until one of them fails or the nameserver ends the session."""
        async with tasks_together() as tasks:
            reporting = tasks.create_task(self._report_forever(call))
            while isinstance(directive := await call.read(), BrokerDirective):  # else the end of the stream
                self._on_directive(directive)
            reporting.cancel()

    def _on_directive(self, directive: BrokerDirective) -> None:
        if directive.heartbeat_interval_ms > 0:
            self._interval_ms = directive.heartbeat_interval_ms
        if directive.HasField("register"):
            self._owner.on_register(directive.register)
        self._owner.on_view(self._address, directive.shard)

    async def _report_forever(self, call: Any) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            if self._updated or self._removed:
                changes = BrokerReport.TopicChanges(updated=self._updated.values(), removed=sorted(self._removed))
                self._updated, self._removed = {}, set()
                await call.write(BrokerReport(topic_changes=changes))
            await call.write(BrokerReport(heartbeat=self._owner.heartbeat()))
