"""A member of a consumer group: sessions with the brokers, the share of the queues, claims, revocation, commits.

All decisions are made in one thread (:class:`~.control.ControlLoop`), from events of the sessions and of the route
watch, so a change of members is acted on when it is heard of. The rules:

* the share is computed from the member list of one broker group, the coordinator: the first one by name, among those
  that live, of the group's topics; so members see the same list;
* a queue is worked on only while its broker has granted it to the session;
* a queue that is not in the share any more is stopped, its running work finished, committed and released, in that
  order;
* when a session breaks, its queues stand still with all they hold. If the next grant shows that nobody has got
  further meanwhile, they go on from where they were, not from the last commit;
* an orderly member locks its queues: they stay its own for ``revoke_timeout_ms`` after a session that broke, so that
  the work that had begun has time to end; the next session tells which those are;
* the user hears of a queue before its first message, and again when its work has ended, before it is released;
* after a session has moved (a master died or came back), the other members are still on their way. For a moment the
  member list is too short, and acting on it would move every queue twice; so the former share stays.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from functools import partial
from operator import itemgetter

from penstock.proto import names
from penstock.proto.errors import CommitRefused, PenstockError

from ...cluster import Subscription
from ...message import MessageQueue
from ..core import ConsumerCore
from ..local_queue import Lease, LocalQueue, Standing
from ..offsets import NEVER_COMMITTED
from ..owner import COMMIT_TIMEOUT_S, QueueOwner, uncommitted
from .commits import Commits, Shard
from .consumer_session import ConsumerSession, SessionListener
from .mismatches import Mismatches
from .notices import Callbacks, Notices
from .rebalance import Strategy, allocate

log = logging.getLogger(__name__)

RETRY_GRANT_S = 0.5
RETRY_SHARE_S = 1.0
FINISHED_KEPT_S = 60.0
LOCK_MS_MAX = 24 * 3600 * 1000  # brokers lock no longer


class Membership(QueueOwner, SessionListener):
    """Works on the queues that brokers have granted to this member, and only on them.

    Fields are written by the control thread, but where it says otherwise.
    """

    def __init__(self, core: ConsumerCore, strategy: Strategy, callbacks: Callbacks) -> None:
        super().__init__(core, "member")
        retries = names.RETRY_PREFIX + core.group  # of all members alike, for all compute one share
        self._subscriptions[retries] = Subscription.of_all(retries)
        self._client_id = core.client_id
        self._strategy = strategy
        self._shards: dict[str, Shard] = {}  # sessions by broker name; `commit` and `close` read it in other threads
        self._mismatches = Mismatches(core.group, core.client_id)
        # Finished here when there was no broker to commit it at: offset, its epoch, and until when it is trusted.
        self._finished: dict[MessageQueue, tuple[int, int, float]] = {}
        self._had_coordinator = False  # True once a share was computed, which a session that moves may disturb
        self._is_stale = True  # the share must be computed again
        self._share_at_s = 0.0  # not before then: the strategy has failed
        self._commits = Commits(core, self._control)
        self._notices = Notices(core.group, callbacks, self._control.post)
        self._has_callbacks = bool(callbacks)
        self._leaving: dict[LocalQueue, bool] = {}  # revoked ones whose work has ended: True when the user knows
        self._lock_ms = min(core.config.revoke_timeout_ms, LOCK_MS_MAX) if core.is_orderly else 0
        self._leave_by_s = math.inf  # less once the consumer is about to close
        self._has_left = threading.Event()  # about to close, and without queues

    def commit(self, offsets: Mapping[MessageQueue, int], timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Commit now.

        Raises:
            CommitRefused: a queue is not (any more) this member's, or an offset is beyond its queue's end.
            BrokerUnavailable, OutcomeUnknown: a broker did not answer; nothing is known to be committed there.
        """
        by_broker: dict[str, dict[LocalQueue, int]] = {}
        with self._buffers.lock:
            for each, offset in offsets.items():
                local = self._buffers.queues.get(each)
                if local is None or local.standing is Standing.WAITING:
                    raise CommitRefused(f"queue {each} is not this member's: it cannot commit {offset}")
                by_broker.setdefault(each.broker_name, {})[local] = offset
        refused = self._commits.commit_at([(self._shards.get(name), by_broker[name]) for name in by_broker], timeout_s)
        if refused:
            raise CommitRefused(
                f"{len(refused)} queues, first {refused[0]} with offset {offsets[refused[0]]}: not this member's any "
                "more, or beyond the queue's end"
            )

    def leave(self, deadline_s: float) -> None:
        if not self._has_callbacks or self._notices.is_own_thread():
            return
        now_s = time.monotonic()
        leave_by_s = now_s + max(deadline_s - now_s, 0.0) / 2

        def begin() -> None:
            self._leave_by_s = leave_by_s
            self._change_share(set(), 0)

        self._control.post(begin)
        self._has_left.wait(max(deadline_s - now_s, 0.0) * 0.75)

    def _end(self, deadline_s: float) -> None:
        for broker_name, shard in list(self._shards.items()):  # a control thread that is late may still add one
            offsets = uncommitted(self._buffers, broker_name)
            if offsets and shard.session_id:
                timeout_s = max((deadline_s - time.monotonic()) / 2, 0.2)
                try:
                    self._commits.report(self._commits.commit(shard, offsets, timeout_s))
                except PenstockError as error:
                    log.warning("last commit failed broker=%s error=%s", broker_name, error.message)
        for broker_name, shard in list(self._shards.items()):
            if self._lock_ms:  # what is in work stays locked
                with self._buffers.lock:
                    mine = self._buffers.of_broker().get(broker_name, [])
                    idle = [local.queue for local in mine if not local.is_busy()]
                shard.session.release(idle)
            shard.session.begin_close()
        for shard in self._shards.values():
            shard.session.close(max(deadline_s - time.monotonic(), 0.1))
        self._notices.close()

    # The control thread

    def _decide(self, now_s: float) -> float:
        is_leaving = self._leave_by_s < math.inf
        if is_leaving and not self._buffers.queues:
            self._has_left.set()
        next_s = self._rebalance(now_s) if self._is_stale and not is_leaving else now_s + 1.0
        return min(next_s, self._finish_revocations(now_s))

    def _commit_progress(self) -> None:
        for shard in self._shards.values():
            self._commits.send_progress(shard)

    def _routes_changed(self) -> None:
        self._is_stale = True
        self._core.fetcher.on_routes()
        for shard in self._shards.values():
            shard.session.on_routes()

    def _rebalance(self, now_s: float) -> float:
        """Compute the share and act on it; when to look again, if it has to wait."""
        if now_s < self._share_at_s:
            return self._share_at_s
        queues = {queue for queue in self._subscribed_queues() if self._directory.readable(queue.broker_name)}
        names = sorted({each.broker_name for each in queues})
        for name in names:
            if name not in self._shards:
                self._open_shard(name)
        coordinator = self._shards[names[0]] if names else None
        if coordinator is not None:
            if coordinator.members is None or self._client_id not in coordinator.members:
                return now_s + 1.0  # the event that brings the list comes here again
            if now_s < coordinator.settle_until_s:
                return coordinator.settle_until_s
            self._had_coordinator = True
        members = coordinator.members if coordinator is not None and coordinator.members else []
        try:
            mine = allocate(self._strategy, self._client_id, queues, members)
        except BaseException:  # the strategy's edge: the former share stays, and its commits go on; sys.exit too
            log.exception("strategy failed, asked again soon group=%s members=%d", self._core.group, len(members))
            self._share_at_s = now_s + RETRY_SHARE_S
            return self._share_at_s
        self._is_stale = False
        self._change_share(mine, len(members))
        self._close_shards()
        return now_s + 1.0

    def _change_share(self, mine: set[MessageQueue], members: int) -> None:
        with self._buffers.lock:
            known = self._buffers.queues
            lost = [
                local for each, local in known.items() if each not in mine and local.standing is not Standing.REVOKED
            ]
            gained = sorted(mine - known.keys())
            for local in lost:
                self._revoke(local)
            for each in gained:
                known[each] = self._core.new_queue(each)
            self._buffers.lock.notify_all()
        if lost or gained:
            counts = members, len(mine), len(gained), len(lost)
            log.info("share changed group=%s members=%d queues=%d gained=%d lost=%d", self._core.group, *counts)
        self._claim(gained)

    def _revoke(self, local: LocalQueue) -> None:
        """Stop handing out; what was fetched and not begun is dropped for the next owner to fetch."""
        local.standing = Standing.REVOKED
        self._buffers.drop_buffered(local)
        local.stop()
        local.revoke_deadline_s = time.monotonic() + self._core.config.revoke_timeout_ms / 1000

    def _claim(self, queues: list[MessageQueue]) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for each in queues:
            by_broker.setdefault(each.broker_name, []).append(each)
        for broker_name, of_broker in by_broker.items():
            shard = self._shards.get(broker_name)
            if shard is not None and shard.session_id:
                shard.session.claim(of_broker)

    def _finish_revocations(self, now_s: float) -> float:
        """Release the revoked queues whose work has ended, or has had its time; when the next one has had its."""
        done: dict[str, list[LocalQueue]] = {}
        next_s = now_s + 1.0
        with self._buffers.lock:
            for local in self._buffers.queues.values():
                if local.standing is not Standing.REVOKED:
                    continue
                if self._is_over(local, now_s):
                    done.setdefault(local.queue.broker_name, []).append(local)
                else:
                    next_s = min(next_s, local.revoke_deadline_s)
        for broker_name, locals_ in done.items():
            self._release(broker_name, locals_)
            self._is_stale = True  # a queue may have come back into the share meanwhile
            next_s = now_s
        return next_s

    def _is_over(self, local: LocalQueue, now_s: float) -> bool:
        """True if a revoked queue's work has ended and then its user's callback, or each has had its time."""
        is_told = self._leaving.get(local)
        if is_told is None:
            # Who closes waits no more for work: whatever had time to end has ended.
            if local.is_busy() and now_s < local.revoke_deadline_s and self._leave_by_s == math.inf:
                return False
            self._leaving[local] = False
            local.revoke_deadline_s = min(now_s + self._core.config.revoke_timeout_ms / 1000, self._leave_by_s)
            self._notices.revoked(local.queue, partial(self._on_told, local))
            is_told = self._leaving[local]
        if not is_told and now_s >= local.revoke_deadline_s:
            log.warning("on_revoked did not return in time, the queue goes on elsewhere queue=%s", local.queue)
            return True
        return is_told

    def _on_told(self, local: LocalQueue) -> None:
        if local in self._leaving:
            self._leaving[local] = True

    def _release(self, broker_name: str, locals_: list[LocalQueue]) -> None:
        shard = self._shards.get(broker_name)
        with self._buffers.lock:
            busy = [local.queue for local in locals_ if local.is_busy()]
            offsets = {local: offset for local in locals_ if (offset := local.to_commit()) is not None}
            epochs = {local: local.log_epoch for local in offsets}
        if busy:
            log.warning("work did not end in time, its queues go on elsewhere count=%d first=%s", len(busy), busy[0])
        if offsets:
            try:
                kept = self._commits.commit(shard, offsets, COMMIT_TIMEOUT_S)
            except PenstockError as error:
                log.warning("commit at revocation failed broker=%s error=%s", broker_name, error.message)
                kept = [local.queue for local in offsets]
            else:
                self._commits.report(kept)  # refused: also by a broker that is back and does not know of the claim
            trusted_until_s = time.monotonic() + FINISHED_KEPT_S
            for local, offset in offsets.items():
                if local.queue in kept:
                    self._finished[local.queue] = (offset, epochs[local], trusted_until_s)
        with self._buffers.lock:
            for local in locals_:
                self._buffers.remove(local.queue)
                self._leaving.pop(local, None)
        # Who closes has waited long enough for work, and says nothing of what is locked and still in work.
        stays = busy if self._lock_ms and self._leave_by_s < math.inf else []
        if shard is not None:
            shard.session.release([local.queue for local in locals_ if local.queue not in stays])

    def _finished_here(self, queue: MessageQueue) -> tuple[int, int]:
        """The offset up to which this member finished the queue before its broker went away lately, else -1; its epoch.

        Not for long: an administrator may have reset the group since.
        """
        offset, log_epoch, trusted_until_s = self._finished.get(queue, (NEVER_COMMITTED, 0, 0.0))
        return (offset, log_epoch) if time.monotonic() < trusted_until_s else (NEVER_COMMITTED, 0)

    # Sessions

    def _open_shard(self, name: str) -> None:
        session = ConsumerSession(self._core, name, self._subscriptions, self, self._control.post, self._lock_ms)
        self._shards[name] = Shard(session)
        session.start()

    def _close_shards(self) -> None:
        """Leave broker groups that no topic needs, once nothing of theirs is held. One that is down may return."""
        routes = [route for topic in self._subscriptions if (route := self._directory.known(topic)) is not None]
        needed = {each.broker_name for route in routes for each in (*route.queues, *route.absent)}
        with self._buffers.lock:
            needed.update(each.broker_name for each in self._buffers.queues)
        for name in self._shards.keys() - needed:
            self._shards.pop(name).session.close()

    def _subscriptions_changed(self) -> None:
        self._is_stale = True
        self._mismatches.forget()
        for shard in self._shards.values():
            shard.session.subscribe(self._subscriptions)

    def _shard_of(self, session: ConsumerSession) -> Shard | None:
        shard = self._shards.get(session.broker_name)
        return shard if shard is not None and shard.session is session else None

    def on_joined(self, session: ConsumerSession, session_id: int, address: str, lease: Lease | None = None) -> None:
        shard = self._shard_of(session)
        if shard is None:
            return
        shard.session_id, shard.address, shard.lease = session_id, address, lease
        if self._had_coordinator:
            shard.settle_until_s = time.monotonic() + self._core.config.settle_ms / 1000
        with self._buffers.lock:
            mine = self._buffers.of_broker().get(session.broker_name, [])
            # Also those that are revoked by now: their work ends first, then they are released.
            held = {local.queue: until_s for local in mine if (until_s := self._locked_until_s(local))}
            wanted = [local.queue for local in mine if local.standing in (Standing.WAITING, Standing.SUSPENDED)]
        if held:
            shard.session.reclaim(held, min(held.values()))
        shard.session.claim(each for each in wanted if each not in held)

    def on_members(self, session: ConsumerSession, client_ids: list[str]) -> None:
        shard = self._shard_of(session)
        if shard is not None:
            shard.members = client_ids
            self._is_stale = True

    def on_lost(self, session: ConsumerSession, error: PenstockError) -> None:
        shard = self._shard_of(session)
        if not error.retryable:
            self._core.fail(error)
        if shard is None:
            return
        log.info("consumer session lost broker=%s error=%s", session.broker_name, error.message)
        shard.session_id, shard.members = 0, None
        with self._buffers.lock:
            for each, local in self._buffers.queues.items():
                if each.broker_name == session.broker_name and local.standing is Standing.OWNED:
                    local.standing = Standing.SUSPENDED

    def on_granted(
        self,
        session: ConsumerSession,
        queue: MessageQueue,
        committed: int,
        min_offset: int,
        max_offset: int,
        session_id: int | None = None,
    ) -> None:
        """``session_id``: only if the session still has that one, where the grant is looked at a second time."""
        shard = self._shard_of(session)
        if shard is None or not shard.session_id or session_id not in (None, shard.session_id):
            return
        local = self._buffers.queues.get(queue)
        if local is None:
            session.release([queue])
            return
        if local.standing not in (Standing.WAITING, Standing.SUSPENDED):
            return
        if local.standing is Standing.WAITING and local.next_fetch >= 0 and local.granted_epoch != local.epoch:
            self._begin(local, committed, shard)  # its user has set the position, not an earlier grant
            return
        epoch, joined_as = local.epoch, shard.session_id
        known = max((committed, 0), self._finished_here(queue), key=itemgetter(0))
        with self._buffers.lock:
            is_held_here = committed <= local.unfinished() or local.may_go_back
        if local.standing is Standing.SUSPENDED and is_held_here:
            # What is below is finished here and what is above is held here, or its user has gone back: so it goes on.
            self._go_on_in(shard, local, committed)
            return
        start = self._find_start(queue, shard.address, lambda: (*known, min_offset, max_offset))
        if start is None:
            self._control.post_at(
                time.monotonic() + RETRY_GRANT_S,
                lambda: self.on_granted(session, queue, committed, min_offset, max_offset, joined_as),
            )
            return
        with self._buffers.lock:
            if local.epoch == epoch:  # else its user has set the position meanwhile
                self._buffers.start(local, start.offset, end=max_offset, log_epoch=start.log_epoch)
                local.may_go_back = object() if start.offset < committed else None
                local.granted_epoch = local.epoch
            was_suspended, local.standing = local.standing is Standing.SUSPENDED, Standing.WAITING
        if was_suspended:  # others had the queue meanwhile
            self._notices.revoked(queue, lambda: None)
        self._begin(local, committed, shard)

    def _locked_until_s(self, local: LocalQueue) -> float:
        """How long nobody else can have the queue, by what its last grant says; 0 if that is over."""
        until_s = local.lease.until_s + self._lock_ms / 1000 if self._lock_ms and local.lease is not None else 0.0
        return until_s if until_s > time.monotonic() else 0.0

    def _go_on_in(self, shard: Shard, local: LocalQueue, committed: int) -> None:
        local.lease = shard.lease
        self._finished.pop(local.queue, None)
        self._go_on(local, committed)

    def _begin(self, local: LocalQueue, committed: int, shard: Shard) -> None:
        """Let a granted queue begin when its user knows of it, unless the grant is over by then."""
        joined_as = shard.session_id

        def begin() -> None:
            is_here = self._buffers.queues.get(local.queue) is local and local.standing is Standing.WAITING
            if is_here and shard.session_id == joined_as:
                self._go_on_in(shard, local, committed)

        self._notices.assigned(local.queue, begin)

    def on_mismatch(self, topic: str, mine: str | None, other_client_id: str, theirs: str | None) -> None:
        self._mismatches.tell(topic, mine, other_client_id, theirs)

    def on_reset(self, session: ConsumerSession, queue: MessageQueue, offset: int) -> None:
        log.info("offset was reset by an administrator queue=%s offset=%d", queue, offset)
        with self._buffers.lock:
            local = self._buffers.queues.get(queue)
            if local is None or (local.standing is Standing.WAITING and local.granted_epoch != local.epoch):
                return  # not this member's, or its user has set the position
            self._buffers.start(local, offset)
            local.committed, local.granted_epoch = offset, local.epoch
            local.may_go_back = object()  # behind a commit that was on its way, and came to the broker after the reset
