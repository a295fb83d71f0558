"""The ConsumerSession stream: a consumer's life line at this broker.

A session begins with ``Join`` and ends with its stream, after ``SILENCE_S`` without a word from the client, or when
the same client joins again. Members learn of every change at once. What a session holds is free for the others from
the moment it ends.

Each heartbeat of the client is answered by one heartbeat, and nothing else is: requests are handled in order, so an
answered heartbeat tells the client that every request sent before it has been handled. A client uses that to tell a
grant that crossed its release on the way from a grant that came after it. A member that locks its queues uses it as
its lease too: the session lives for ``SILENCE_S`` from the moment at which an answered heartbeat was sent, or longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.proto.errors import (
    BrokerUnavailable,
    FlowControl,
    InvalidArgument,
    LimitReached,
    PenstockError,
    Retryable,
)
from penstock.proto.names import DERIVED_TOPIC_LENGTH_MAX, check_group
from penstock.proto.wire.broker_pb2 import ConsumerEvent, ConsumerRequest, Filter, GroupMember
from penstock.proto.wire.common_pb2 import Empty, TopicQueues
from penstock.runtime.clock import Clock
from penstock.runtime.turns import Turns

from ..core.wire import TURN, check_queues
from ..limits import Limits
from .groups import Changes, Groups, Mismatch
from .locks import KEPT_MAX, SILENCE_S, Key, Locks
from .session import CLAIMS_MAX, CLAIMS_OF_ALL_MAX, Session

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 1000
WATCH_INTERVAL_S = 0.25
COMPARE_AFTER_S = 1.0
EXPRESSIONS_LENGTH_MAX = 256 * 1024  # characters, of all subscriptions of one consumer, with the topics' names
CLIENT_ID_LENGTH_MAX = 255
LOCK_MS_MAX = 24 * 3600 * 1000
RESETS_MAX = 1 << 17
"""The newest resets of queues that nobody held: two topics of as many queues as there may be."""


async def _nothing_to_wait_for() -> None:
    """Everything is acknowledged."""


@dataclass(eq=False, kw_only=True)
class ConsumerSessions:
    """All consumer sessions of one broker; event loop only.

    ``committed(group, topic, queue_id)`` and ``queue_range(topic, queue_id)`` tell what a grant carries;
    ``join_group(group)`` creates the group where that is allowed, or raises
    :class:`~penstock.proto.errors.GroupNotFound`. ``catch_up``: have what is confirmed dispatched, before a grant tells
    where its queue ends. ``check_join``: raises for a member that the group's settings refuse. ``begins_at_end(group,
    topic)``: a group that has committed nothing is told of no older messages. ``on_joined``: is told what each member
    subscribes. ``is_acting()``: true if this broker is master, and nobody else can be: only then are queues locked.
    ``shown()`` returns when the next master will know the group.
    """

    committed: Callable[[str, str, int], int]
    queue_range: Callable[[str, int], tuple[int, int]]
    join_group: Callable[[str], None]
    check_join: Callable[[ConsumerRequest.Join], None] = lambda join: None
    begins_at_end: Callable[[str, str], bool] = lambda group, topic: False
    on_joined: Callable[[ConsumerRequest.Join], Awaitable[None]] | None = None
    clock: Clock
    limits: Limits = Limits()  # noqa: RUF009  frozen
    catch_up: Callable[[], None] = lambda: None
    is_acting: Callable[[], bool] = lambda: True
    shown: Callable[[], Awaitable[None]] = _nothing_to_wait_for

    def __post_init__(self) -> None:
        self._locks = Locks(self.is_acting)
        self._groups = Groups(self._locks)
        self._sessions: dict[int, Session] = {}
        self._resets: dict[Key, int] = {}  # whoever is granted one next is told
        self._turns = Turns()
        self._closed = False

    async def serve(self, requests: AsyncIterator[ConsumerRequest], context: Any) -> AsyncIterator[ConsumerEvent]:
        """One session, from its stream's begin to its end.

        Raises:
            InvalidArgument: the first request is no Join, or a request makes no sense.
            InvalidName, GroupNotFound: the group may not be joined.
            BrokerUnavailable: the session was ended by silence, by the same client's new session, or by closing.
            FlowControl: the client did not read its events, or claims too many queues.
        """
        if self._closed:
            raise BrokerUnavailable("the broker is shutting down: join elsewhere")
        session = Session(self._new_id(), self.clock.monotonic_s())
        tasks = [
            asyncio.create_task(self._read(session, requests), name="consumer-session-read"),
            asyncio.create_task(self._watch(session), name="consumer-session-watch"),
        ]
        try:
            async for event in session.events():
                yield event
        finally:
            self._end(session, None)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def owns(self, session_id: int, group: str, topic: str, queue_id: int) -> bool:
        """True if this session holds the queue now: only then may it commit."""
        return session_id != 0 and self._groups.holder(group, topic, queue_id) == session_id

    def generation(self, group: str) -> int:
        """Grows with every change of the group's members at this broker."""
        return self._groups.members(group)[0]

    def describe(self, group: str) -> list[GroupMember]:
        """The members with what they hold and want, sorted by client id."""
        members = []
        for client_id, session_id in sorted(self._groups.sessions(group).items()):
            claimed: dict[str, list[int]] = {}
            for topic, queue_id in self._groups.held_by(session_id):
                claimed.setdefault(topic, []).append(queue_id)
            queues = [TopicQueues(topic=topic, queue_ids=queue_ids) for topic, queue_ids in claimed.items()]
            wanted = self._groups.member(session_id).subscriptions
            broadcasting = self._groups.member(session_id).broadcasting
            members.append(
                GroupMember(client_id=client_id, claimed=queues, subscriptions=wanted, broadcasting=broadcasting)
            )
        return members

    def has_members(self, group: str) -> bool:
        """True if the group has members here that share its queues."""
        return bool(self._groups.members(group)[1])

    def broadcasting(self, group: str) -> int:
        """How many members the group has here that get everything."""
        return len(self._groups.broadcasting(group))

    def only_broadcast(self, group: str) -> bool:
        """True if the group has members here, and each gets everything: nobody goes by committed offsets."""
        return bool(self._groups.broadcasting(group)) and not self._groups.members(group)[1]

    def notify_reset(self, group: str, topic: str, queue_id: int, offset: int, by_session: int = 0) -> None:
        """Tell the holder of the queue, and who broadcasts the topic, to go on from ``offset``; not who said so.

        A member whose session is down at the moment would go on where it was: so the next holder is told, unless the
        one that was told is heard behind it.
        """
        key, holder = (group, topic, queue_id), self._groups.holder(group, topic, queue_id)
        self._resets.pop(key, None)
        if holder is None or holder != by_session:
            self._resets[key] = offset  # behind all others
            if len(self._resets) > RESETS_MAX:
                del self._resets[next(iter(self._resets))]  # the oldest
        told = [each for each in self._groups.broadcasting(group) if topic in self._groups.member(each).subscriptions]
        for session_id in (holder or 0, *told):
            session = self._sessions.get(session_id)
            if session is not None and session_id != by_session:
                session.send(_reset(topic, queue_id, offset))
                session.told.append(key)

    def on_role(self, groups: Collection[str] | None) -> None:
        """A mastership has begun, in which these groups are known already, or is over (None).

        What was locked here is for the next master to say: members come again and tell what they hold.
        """
        for session in list(self._sessions.values()):
            if self._has_locks(session):
                self._end(session, BrokerUnavailable("the broker's mastership has changed: join again"))
        self._resets.clear()
        if groups is not None:
            self._locks.begin(groups, self.clock.monotonic_s())

    def close(self) -> None:
        """End every session; new ones are refused."""
        self._closed = True
        for session in list(self._sessions.values()):
            self._end(session, BrokerUnavailable("the broker is shutting down: join elsewhere"))

    def _new_id(self) -> int:
        # Random, so that a session of another broker or of an earlier run never owns anything here.
        while (made := secrets.randbits(64)) == 0 or made in self._sessions:
            pass
        return made

    async def _read(self, session: Session, requests: AsyncIterator[ConsumerRequest]) -> None:
        try:
            async for request in requests:
                if not session.ended:  # while the request was on its way
                    session.heard_s = self.clock.monotonic_s()
                    await self._handle(session, request)
                if session.ended:
                    return
            self._end(session, None)
        except PenstockError as error:
            self._end(session, error)
        except Exception as error:  # the edge of the reading task: this session ends, others go on
            log.error("consumer session failed group=%s client=%s", session.group, session.client_id, exc_info=error)
            self._end(session, BrokerUnavailable("the session failed, see the broker's log"))

    async def _watch(self, session: Session) -> None:
        while not session.ended:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self.clock.monotonic_s() >= session.compare_at_s:
                await self._turns.have()  # many may have joined at once
            now_s = self.clock.monotonic_s()
            if not session.ended and now_s >= session.compare_at_s:
                session.compare_at_s = math.inf
                self._compare_subscriptions(session)
            if not session.ended and session.group:
                self._locks.forget_old(now_s)
                self._publish(self._groups.look_again(session.session_id, now_s))
            silent_s = now_s - session.heard_s
            if silent_s >= SILENCE_S:
                log.warning(
                    "consumer was silent, session ended group=%s client=%s silent_s=%.1f",
                    session.group,
                    session.client_id,
                    silent_s,
                )
                self._end(session, BrokerUnavailable(f"no heartbeat for {silent_s:.1f} s, the session was ended"))
        # Also where the stream itself cannot notice, because it waits for a client that reads nothing.
        self._end(session, session.error)

    async def _handle(self, session: Session, request: ConsumerRequest) -> None:
        kind = request.WhichOneof("request")
        if kind == "join":
            self._join(session, request.join)
            if self.on_joined is not None:
                await self.on_joined(request.join)
        elif not session.group:
            raise InvalidArgument(f"consumer session began with {kind or 'an empty request'}: it must begin with join")
        elif kind == "claim":
            await self._claim(session, request.claim)
        elif kind == "reclaim":
            left_s = min(max(request.reclaim.left_ms, 0), LOCK_MS_MAX) / 1000
            await self._claim(session, request.reclaim.queues, session.heard_s + left_s)
        elif kind == "release":
            await self._release(session, request.release)
        elif kind == "heartbeat":
            if self._has_locks(session) and not self._locks.is_acting():
                # An answer would be a promise that no other broker grants the queues meanwhile.
                self._end(session, BrokerUnavailable("another broker may be master by now: join again"))
                return
            session.send(ConsumerEvent(heartbeat=Empty()))
            for key in session.told:
                if self._groups.holder(*key) == session.session_id:
                    self._resets.pop(key, None)
            session.told.clear()
        else:
            raise InvalidArgument("consumer session: a request without content")

    def _join(self, session: Session, join: ConsumerRequest.Join) -> None:
        check_group(join.group)
        if not join.client_id or len(join.client_id) > CLIENT_ID_LENGTH_MAX:
            raise InvalidArgument(
                f"client id of {len(join.client_id)} characters: 1..{CLIENT_ID_LENGTH_MAX} are allowed"
            )
        if not 0 <= join.lock_ms <= LOCK_MS_MAX:
            raise InvalidArgument(f"client {join.client_id}: lock_ms {join.lock_ms}: 0..{LOCK_MS_MAX} are allowed")
        self._check_subscriptions(join)
        is_new = not session.group
        if not is_new and (session.group, session.client_id) != (join.group, join.client_id):
            raise InvalidArgument("a session may change its subscriptions, not its group or client id")
        self.join_group(join.group)
        self.check_join(join)
        if is_new:
            self._end_former(join)
            self._check_room(join)
            session.group, session.client_id = join.group, join.client_id
            self._sessions[session.session_id] = session
            joined = ConsumerEvent.Joined(session_id=session.session_id, heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS)
            session.send(ConsumerEvent(joined=joined))
            log.info("consumer joined group=%s client=%s session=%x", join.group, join.client_id, session.session_id)
        wanted = {topic: _text_of(each) for topic, each in join.subscriptions.items()}
        now_s = self.clock.monotonic_s()
        who = session.session_id, join.group, join.client_id
        lock_s = join.lock_ms / 1000
        self._publish(self._groups.join(*who, wanted, lock_s, now_s, broadcasting=join.broadcasting))
        # Not at once: a member subscribes its topics one after the other, and members are changed one by one.
        session.compare_at_s = now_s + COMPARE_AFTER_S

    def _check_subscriptions(self, join: ConsumerRequest.Join) -> None:
        count, length = len(join.subscriptions), 0
        if count > self.limits.subscriptions_max:
            raise LimitReached(
                f"client {join.client_id}: {count} subscriptions: at most {self.limits.subscriptions_max} are allowed "
                "(maxSubscriptionsPerClient)"
            )
        for topic, wanted in join.subscriptions.items():
            length += len(topic) + len(wanted.expression)
        if length > EXPRESSIONS_LENGTH_MAX:
            raise LimitReached(
                f"client {join.client_id}: subscriptions of {length} characters: at most {EXPRESSIONS_LENGTH_MAX}"
            )

    def _check_room(self, join: ConsumerRequest.Join) -> None:
        if len(self._sessions) >= self.limits.sessions_max:
            raise LimitReached(f"group {join.group}: {len(self._sessions)} consumers are here (maxConsumerSessions)")
        count = len(self._groups.sessions(join.group))
        if count >= self.limits.members_max:
            raise LimitReached(f"group {join.group}: it has {count} consumers at this broker (maxClientsPerGroup)")

    def _end_former(self, join: ConsumerRequest.Join) -> None:
        former = self._sessions.get(self._groups.superseded(join.group, join.client_id) or 0)
        if former is not None:
            log.warning("consumer joined again, former session ended group=%s client=%s", join.group, join.client_id)
            self._end(former, BrokerUnavailable(f"client {join.client_id} has joined again in another session"))

    def _has_locks(self, session: Session) -> bool:
        return bool(session.group) and self._groups.has_locks(session.session_id)

    async def _claim(self, session: Session, claim: TopicQueues, held_until_s: float = 0.0) -> None:
        if len(self._groups.member(session.session_id).wanted) + len(claim.queue_ids) > CLAIMS_MAX:
            raise FlowControl(f"client {session.client_id} claims more than {CLAIMS_MAX} queues at one broker")
        if self._groups.member(session.session_id).broadcasting:
            raise InvalidArgument(f"client {session.client_id} broadcasts: it gets everything and may claim nothing")
        check_queues(claim.topic, claim.queue_ids)
        if len(claim.topic) > DERIVED_TOPIC_LENGTH_MAX:
            raise InvalidArgument(f"claim of topic {claim.topic[:64]!r}: no topic has so long a name")
        if any(queue_id < 0 for queue_id in claim.queue_ids):
            raise InvalidArgument(f"claim of a negative queue id of topic {claim.topic!r:.80}")
        if self._groups.member(session.session_id).lock_s:
            if len(self._locks) > KEPT_MAX:
                raise FlowControl(f"{KEPT_MAX} queues are locked for members that are gone: try again later")
            await self.shown()
        for part in _parts(claim.queue_ids):
            if session.ended:
                return
            if self._groups.claims + len(part) > CLAIMS_OF_ALL_MAX:
                raise FlowControl(
                    f"client {session.client_id}: all consumers together may claim {CLAIMS_OF_ALL_MAX} queues at one "
                    "broker: stop some, or spread the topics over more brokers"
                )
            now_s = self.clock.monotonic_s()
            self._publish(self._groups.claim(session.session_id, claim.topic, part, now_s, held_until_s))
            await asyncio.sleep(0)

    async def _release(self, session: Session, release: TopicQueues) -> None:
        check_queues(release.topic, release.queue_ids)
        for part in _parts(release.queue_ids):
            now_s = self.clock.monotonic_s()
            self._publish(self._groups.release(session.session_id, release.topic, part, now_s))
            await asyncio.sleep(0)
            if session.ended:
                return

    def _end(self, session: Session, error: PenstockError | None) -> None:
        known = self._sessions.pop(session.session_id, None)
        session.end(error)
        if known is not None:
            self._publish(self._groups.end(session.session_id, self.clock.monotonic_s()))
            # A broken stream ends without an error of ours; being refused is the client's to report.
            why = error.message if isinstance(error, Retryable) else "left"
            log.info("consumer session ended group=%s client=%s why=%s", session.group, session.client_id, why)

    def _publish(self, changes: Changes) -> None:
        if changes.grants:
            self.catch_up()
        for grant in changes.grants:
            session = self._sessions.get(grant.session_id)
            if session is None:
                continue  # ended in this very moment; what it held has been passed on
            min_offset, max_offset = self.queue_range(grant.topic, grant.queue_id)
            committed = self.committed(session.group, grant.topic, grant.queue_id)
            if committed < 0 and self.begins_at_end(session.group, grant.topic):
                min_offset = max_offset
            granted = ConsumerEvent.Granted(
                topic=grant.topic,
                queue_id=grant.queue_id,
                committed_offset=committed,
                min_offset=min_offset,
                max_offset=max_offset,
            )
            session.send(ConsumerEvent(granted=granted))
            if self._resets.pop((session.group, grant.topic, grant.queue_id), -1) == committed >= 0:
                session.send(_reset(grant.topic, grant.queue_id, committed))
        for group in changes.groups:
            generation, client_ids = self._groups.members(group)
            members = ConsumerEvent(members=ConsumerEvent.Members(generation=generation, client_ids=client_ids))
            for session_id in self._groups.sessions(group).values():
                if session_id in self._sessions:
                    self._sessions[session_id].send(members)

    def _compare_subscriptions(self, session: Session) -> None:
        found = self._groups.mismatches(session.session_id)
        for each in found:
            self._tell_mismatch(each)
        if found:
            log.warning(
                "subscription mismatch group=%s topic=%s client=%s expression=%.100r other_client=%s "
                "other_expression=%.100r topics=%d: members of a group must subscribe alike, or messages go to members "
                "that do not want them",
                *(*found[0], len(found)),
            )

    def _tell_mismatch(self, found: Mismatch) -> None:
        """Tell both members: each of them may be the one that is wrong."""
        sides = ((found.client_id, found.expression), (found.other_client_id, found.other_expression))
        members = self._groups.sessions(found.group)
        for (client_id, expression), (other, theirs) in (sides, sides[::-1]):
            session = self._sessions.get(members.get(client_id, 0))
            if session is not None:
                session.send(
                    ConsumerEvent(
                        mismatch=ConsumerEvent.Mismatch(
                            topic=found.topic, expression=expression, other_client_id=other, other_expression=theirs
                        )
                    )
                )


def _reset(topic: str, queue_id: int, offset: int) -> ConsumerEvent:
    return ConsumerEvent(reset=ConsumerEvent.Reset(topic=topic, queue_id=queue_id, offset=offset))


def _parts(queue_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (queue_ids[start : start + TURN] for start in range(0, len(queue_ids), TURN))


def _text_of(wanted: Filter) -> str:
    if wanted.kind == Filter.ALL:
        return "*"
    return wanted.expression if wanted.kind == Filter.TAG else f"SQL92: {wanted.expression}"
