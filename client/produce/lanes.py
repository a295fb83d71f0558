"""The order of one topic's messages on their way: who goes next, with whom, and what an answer means for them.

A *lane* is one ordered stream of batches of this producer to one topic at one broker group. It has one batch under
way, and a queue always belongs to the same lane (queue id modulo ``LANES``). So the order within a queue holds through
every retry, and the broker knows a repeated batch by its lane and sequence number.

Messages without a sharding key are sticky: a whole batch goes to one queue, the next one to the next queue. Messages
with one are spread over the lanes of their queues, where neighbours are joined to batches again; what waits without a
key rides in such a batch too, or where it cannot has the lane's next one to itself, so that each kind leaves room for
the other however busy the lanes are. A chosen queue is like that of a key that never moves.

What happens to a batch that brought no receipt:

* Not stored (refused for now, or it never reached the broker): its messages are free. Those without a key go to
  another broker group at once, or to the same one after a pause; those with one wait for their lane.
* Unknown (the call broke, or nothing came in time): the same bytes again, to whoever is master of the *same* group,
  until its word or the deadline. So it is stored once.
* Refused: not tried again; where one message of several may be the reason, fewer are tried together.

Where keys go, and how they move: :mod:`.sharding.key_moves`.

Decisions only: no threads, no network, time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import FlushTimeout, LaneForgotten, OutcomeUnknown, PenstockError, ReplicaTimeout

from ..cluster.queues import WriteQueues
from ..cluster.retry import NEVER, Outcome, back_off_s, counts_as_refusal, is_unwritable, outcome_of, reworded
from .config import ProducerConfig
from .health import BrokerHealth
from .parts import LANES, Batch, Failure, Kind, Lane, Line, Part, halved, is_of_one
from .receipts import unsent
from .sharding.key_moves import KeyMoves

SMALL_PER_BROKER = 2
"""Batches of waiting senders under way at a broker, less than half full, up to which another such one starts; above,
senders share the next one, which goes when there is room, or is half full, or something waits behind it."""
MASTER_GONE_S = 1.0
RECHECK_S = 0.25


class Lanes:
    """The queue of waiting parts and the lanes of one topic. Not thread-safe: its owner holds a lock."""

    def __init__(
        self, topic: str, config: ProducerConfig, health: BrokerHealth, queues: WriteQueues, turn: int = 0
    ) -> None:
        self.topic = topic
        self.queues = queues
        self.waiting = Line()  # for whatever queue is free
        self.keyed = Line()  # for the queues of their keys, once there is a route
        self.lanes: dict[tuple[str, int], Lane] = {}  # by broker name and number; made when first needed, never dropped
        self._moves = KeyMoves(queues)
        self.half_full = config.batch_bytes_max // 2
        self._config = config
        self._health = health
        self._turn = turn  # where the rotation over all queues stands
        self._in_flight: dict[str, int] = {}  # by broker name: lanes that have a batch

    @property
    def has_waiting(self) -> bool:
        """True if a part waits for its lane to be chosen."""
        return bool(self.waiting or self.keyed)

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts behind those that wait."""
        for part in parts:
            self._line_of(part).append(part)

    def join(self, part: Part) -> Part | None:
        """Add one waiting message; the part that it joined, or ``None`` if it became the newest one itself."""
        line = self._line_of(part)
        last = line[-1] if line else None
        if last is None or not last.may_take(part, self._config.batch_bytes_max, self._config.batch_count_max):
            line.append(part)
            return None
        return line.absorb(part)

    def adopt(self, queues: WriteQueues, now: float) -> None:
        """The route changed: what waited for it goes on."""
        self.queues = queues
        self._moves.adopt(queues, [lane.broker_name for lane in self.lanes.values()], now)
        for lane in self.lanes.values():
            lane.retry_at = 0.0
            if lane.batch is not None and lane.batch.retry_at is not None:
                lane.batch.retry_at = now
        for part in (*self.waiting, *self.keyed):
            part.not_before = 0.0

    def expire(self, now: float) -> list[Failure]:
        """Give up what was not sent before its deadline, or has nobody to take it, and unknown batches past theirs."""
        failures = []
        until = NEVER if self.queues.is_closed else now
        for line in self._lines():
            if line.earliest > until:
                continue
            line.look()
            late = [part for part in line if part.deadline <= until]
            if late:
                # What keeps the first of them keeps those behind it, which were never tried.
                reason = next((part.error for part in line if part.error is not None), None)
                kept = [part for part in line if part.deadline > until]
                line.clear()
                line.extend(kept)
                of_topic = (self.topic, self.queues, self._moves.missing)
                failures += [Failure([part], unsent(part, part.error or reason, *of_topic)) for part in late]
        for lane in self.lanes.values():
            batch = lane.batch
            if batch is not None and batch.retry_at is not None and batch.deadline <= now:
                failures.append(self._give_up(batch))
        return failures

    def late(self, now: float) -> list[Future[Any]]:
        """Futures whose senders have waited long enough, of batches that are tried on for others; each comes once."""
        batches = [lane.batch for lane in self.lanes.values() if lane.batch is not None]
        return [future for batch in batches if batch.tells_at <= now for future in batch.take_late(now)]

    def start(self, now: float, per_broker: int, has_master: Callable[[str], bool]) -> list[Batch]:
        """Every batch that may be sent now, retries first."""
        self._move_keys(now)
        while self.keyed and self._moves.places.homes.total and self.keyed[0].not_before <= now:
            self._spread(self.keyed.popleft(), now)
        batches: list[Batch] = []
        for lane in self.lanes.values():
            batch = lane.batch
            if batch is not None and batch.retry_at is not None and batch.retry_at <= now:
                if has_master(lane.broker_name):
                    batch.retry_at = None
                    batches.append(batch)
                elif self._may_leave(lane, now):
                    self._leave(batch)
                    self._requeue(batch.parts, 0.0)
                else:
                    batch.retry_at = now + RECHECK_S
            if lane.batch is None and lane.pending and lane.retry_at <= now and lane.broker_name in self.queues:
                batches.append(self._lane_batch(lane, now))
        return batches + self._start_waiting(now, per_broker)

    def start_one(self, part: Part, now: float) -> Batch | None:
        """A batch of one part, while nothing waits and there are queues; ``None``: it waits for its lane, or any."""
        if not part.is_bound:
            may_grow = part.may_share and self._has_room(part.cost, part.count)
            chosen = self._next_queue(now, self._config.in_flight_per_broker, may_grow=may_grow)
            if chosen is None:
                self.waiting.append(part)
                return None
            return self._new_batch(self._lane(*chosen), [part], np.array([chosen[1]] * part.count, np.int32))
        self._move_keys(now)
        for lane in self._spread(part, now):
            if lane.batch is None and lane.retry_at <= now and lane.broker_name in self.queues:
                return self._lane_batch(lane, now)
        return None

    def next_due(self, now: float) -> float:
        """When to call :meth:`start` or :meth:`expire` again, if nothing else happens before."""
        due = [line.earliest for line in self._lines()]
        due += [line[0].not_before for line in (self.waiting, self.keyed) if line and line[0].not_before > now]
        if self.keyed and self.keyed[0].not_before <= now and self._moves.places.homes.total:
            due.append(now)  # back from another lane
        due.append(self._moves.next_due())
        for lane in self.lanes.values():
            if lane.batch is not None:
                due.append(lane.batch.tells_at)
                if lane.batch.retry_at is not None:
                    due.append(min(lane.batch.retry_at, lane.batch.deadline))
            if lane.pending and lane.batch is None and lane.broker_name in self.queues:
                due.append(lane.retry_at)
        return min(due, default=NEVER)

    def acknowledged(self, batch: Batch) -> None:
        """``batch`` has its receipt: its lane is free for the next one."""
        self._leave(batch)

    def failed(self, batch: Batch, error: PenstockError) -> Failure:
        """``batch`` cannot be sent at all."""
        self._leave(batch)
        return Failure(batch.parts, error)

    def on_error(self, batch: Batch, error: PenstockError, now: float) -> list[Failure]:
        """A try of ``batch`` ended with ``error``; what is given up because of it."""
        outcome = outcome_of(error)
        batch.attempts += 1
        is_healthy = outcome is Outcome.REFUSED or isinstance(error, (FlushTimeout, ReplicaTimeout))
        if not (is_healthy or is_unwritable(error)):
            self._health.on_failure(batch.lane.broker_name, now * 1000)
        if outcome is Outcome.REFUSED:
            return self._on_refused(batch, error)
        if outcome is Outcome.NOT_STORED and batch.unknown is None:
            return self._on_not_stored(batch, error, now)
        # Not stored *this* time says nothing about an earlier try: it stays unknown.
        if outcome is Outcome.UNKNOWN:
            batch.unknown = error if isinstance(error, OutcomeUnknown) else OutcomeUnknown(error.message)
        if isinstance(error, LaneForgotten):
            return [self.failed(batch, error)]  # nobody can tell any more: another try would be told the same
        if batch.deadline <= now or batch.parts[0].kind is Kind.ONEWAY:
            return [self._give_up(batch)]
        batch.retry_at = now + back_off_s(batch.attempts)
        return []

    def clear(self, error: PenstockError) -> list[Failure]:
        """Give up everything; a batch that was sent counts as unknown."""
        failures = [Failure([part for line in self._lines() for part in line], error)]
        for line in self._lines():
            line.clear()
        for lane in self.lanes.values():
            batch = lane.batch
            if batch is not None:
                self._leave(batch)
                unknown = OutcomeUnknown(f"topic {self.topic}: no answer yet: {error.message}")
                failures.append(Failure(batch.parts, unknown if batch.message else error))
        return [failure for failure in failures if failure.parts]

    def _lines(self) -> list[Line]:
        return [self.waiting, self.keyed, *self._moves.held.values(), *(lane.pending for lane in self.lanes.values())]

    def _move_keys(self, now: float) -> None:
        if self._moves.begin(self.lanes.values(), now):
            for lane in self.lanes.values():
                self._requeue(lane.pending, 0.0)
                lane.pending.clear()

    # Choosing.

    def _line_of(self, part: Part) -> Line:
        return self.keyed if part.is_bound else self.waiting

    def _start_waiting(self, now: float, per_broker: int) -> list[Batch]:
        """Batches of parts for whatever queue is free; at most ``per_broker`` under way at each group."""
        batches: list[Batch] = []
        while self.waiting and self.queues.total and self.waiting[0].not_before <= now:
            chosen = self._next_queue(now, per_broker, may_grow=self._may_grow())
            if chosen is None:
                break
            parts = self._joined(self.waiting)
            queue_ids = np.full(sum(part.count for part in parts), chosen[1], dtype=np.int32)
            batches.append(self._new_batch(self._lane(*chosen), parts, queue_ids))
        return batches

    def _may_grow(self) -> bool:
        """True if all that waits is one batch of senders' messages, and less than half full."""
        line = self.waiting
        return not line.unshared and line.partable <= 1 and self._has_room(line.cost, line.messages)

    def _has_room(self, cost: int, messages: int) -> bool:
        return cost < self.half_full and messages < self._config.batch_count_max

    def _next_queue(self, now: float, per_broker: int, *, may_grow: bool = False) -> tuple[str, int] | None:
        """A queue with a free lane; ``may_grow``: what is for it may wait for others, where such is under way."""
        closed = self._avoided(now)
        closed.update(name for name, count in self._in_flight.items() if count >= per_broker)
        if may_grow:
            batches = [lane.batch for lane in self.lanes.values() if lane.batch is not None]
            small = [batch.lane.broker_name for batch in batches if batch.is_small(self.half_full)]
            closed.update(name for name in small if small.count(name) >= SMALL_PER_BROKER)

        def is_free(name: str, queue_id: int) -> bool:
            lane = self.lanes.get((name, queue_id % LANES))
            return name not in closed and (lane is None or lane.is_free)

        found = self.queues.next_queue(self._turn, is_free)
        if found is None:
            return None
        self._turn, name, queue_id = found
        return name, queue_id

    def _lane(self, broker_name: str, queue_id: int, pending: Part | None = None) -> Lane:
        """The lane of a queue, with ``pending`` behind what it has to send."""
        key = (broker_name, queue_id % LANES)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(*key)
        if pending is not None:
            lane.pending.append(pending)
        return lane

    def _joined(self, line: Line, behind: Sequence[Part] = ()) -> list[Part]:
        """Take as many parts that are like each other as one batch may hold, one at least unless there are some."""
        taken: list[Part] = []
        cost, count = sum(part.cost for part in behind), sum(part.count for part in behind)
        last = behind[-1] if behind else None
        while line:
            part = line[0]
            cost, count = cost + part.cost, count + part.count
            is_full = cost > self._config.batch_bytes_max or count > self._config.batch_count_max
            if last is not None and (is_full or not last.is_like(part)):
                break
            last = line.popleft()
            taken.append(last)
        return taken

    def _lane_batch(self, lane: Lane, now: float) -> Batch:
        """A batch of a free lane's pending parts, and behind them those like them that wait for any queue.

        Where nothing of that could ride, it has the lane's next batch to itself.
        """
        is_due = bool(self.waiting) and self.waiting[0].not_before <= now
        may_ride = is_due and lane.broker_name not in self._avoided(now)
        parts: list[Part] = []
        queue_ids: list[npt.NDArray[np.int32]] = []
        if not (may_ride and lane.owes_a_turn):
            parts = self._joined(lane.pending)
            queue_ids = [part.queue_ids for part in parts if part.queue_ids is not None]
        riding = self._joined(self.waiting, parts) if may_ride else []
        lane.owes_a_turn = may_ride and not riding
        if riding:
            chosen = self._queue_of(lane, parts or [lane.pending[0]])
            queue_ids.append(np.full(sum(part.count for part in riding), chosen, np.int32))
        return self._new_batch(lane, parts + riding, np.concatenate(queue_ids))

    def _avoided(self, now: float) -> set[str]:
        """Broker groups that are in trouble, unless all are."""
        avoided = {name for name, _ in self.queues.shards if self._health.is_avoided(name, now * 1000)}
        return avoided if len(avoided) < len(self.queues.shards) else set()

    def _queue_of(self, lane: Lane, parts: list[Part]) -> int:
        """The lane's next queue in turn."""
        found = self.queues.next_queue(
            self._turn, lambda name, queue_id: name == lane.broker_name and queue_id % LANES == lane.number
        )
        if found is None:  # very many queues
            queue_ids = parts[-1].queue_ids
            assert queue_ids is not None
            return int(queue_ids[-1])
        self._turn, _, queue_id = found
        return queue_id

    def _new_batch(self, lane: Lane, parts: list[Part], queue_ids: npt.NDArray[np.int32]) -> Batch:
        assert lane.batch is None
        lane.sequence += 1
        batch = lane.batch = Batch(lane, parts, lane.sequence, queue_ids)
        self._in_flight[lane.broker_name] = self._in_flight.get(lane.broker_name, 0) + 1
        return batch

    def _spread(self, part: Part, now: float) -> list[Lane]:
        """Give each message its queue by hash, and each lane its messages behind those that are pending; the lanes."""
        if part.place is not None:
            part.queue_ids = np.full(part.count, part.place[1], dtype=np.int32)
            return [self._lane(*part.place, part)]
        free = self._moves.hold(part)
        return self._spread_free(free, now) if free is not None else []

    def _spread_free(self, part: Part, now: float) -> list[Lane]:
        places = self._moves.places
        homes = places.homes
        assert part.hashes is not None
        if part.count == 1:
            name, queue_id = places.place(int(part.hashes[0]))
            part.queue_ids = np.array([queue_id], dtype=np.int32)
            return [self._lane(name, queue_id, part)]
        shards, queue_ids = places.places(part.hashes)
        if part.keyed is not None:  # those without a key share one queue, as a batch of such would
            name, queue_id = self._next_queue(now, LANES) or homes.queue(self._turn % homes.total)
            shard = places.number(name)
            if shard < 0:  # a group that has just come: not yet among the homes
                name, queue_id = homes.queue(self._turn % homes.total)
                shard = places.number(name)
            shards = np.where(part.keyed, shards, shard)
            queue_ids = np.where(part.keyed, queue_ids, queue_id).astype(np.int32)
        part.queue_ids = queue_ids
        groups = shards * LANES + queue_ids % LANES
        order = np.argsort(groups, kind="stable")
        runs = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
        pieces = [part] if len(runs) == 1 else part.split(runs)
        return [
            self._lane(homes.shards[int(shards[run[0]])][0], int(queue_ids[run[0]]), piece)
            for piece, run in zip(pieces, runs, strict=True)
        ]

    # After a try.

    def _leave(self, batch: Batch) -> bool:
        """The batch is under way no more. True if keys of its lane are moving: they go on now, from their line."""
        lane = batch.lane
        assert lane.batch is batch
        lane.batch = None
        self._in_flight[lane.broker_name] -= 1
        held = self._moves.left(lane)
        self.keyed.extendleft(reversed(held or ()))
        return held is not None

    def _may_leave(self, lane: Lane, now: float) -> bool:
        parts = lane.batch.parts if lane.batch is not None else []
        has_no_other = any(part.is_bound if self.queues.ordered else part.place is not None for part in parts)
        may = self._config.retry_another_shard_on_unknown and self.queues.total > 0 and not has_no_other
        return self._moves.gone_s(lane.broker_name, now) >= MASTER_GONE_S and may

    def _on_refused(self, batch: Batch, error: PenstockError) -> list[Failure]:
        is_moving = self._leave(batch)
        if batch.unknown is not None:
            return [Failure(batch.parts, reworded(batch.unknown, f"a later try was refused: {error.message}"))]
        parts = batch.parts
        if not is_of_one(error) or (len(parts) == 1 and (parts[0].count == 1 or parts[0].is_whole)):
            return [Failure(parts, error)]
        self._again(batch.lane, halved(parts), 0.0, 0.0, is_moving)
        return []

    def _on_not_stored(self, batch: Batch, error: PenstockError, now: float) -> list[Failure]:
        is_moving = self._leave(batch)
        failures, again = [], []
        for part in batch.parts:
            part.attempts += 1
            part.refusals += counts_as_refusal(error)
            part.error = error
            is_enough = part.kind is Kind.SEND and part.refusals > self._config.send_retries
            is_gone = part.place is not None and part.place[1] >= error.details.get("queues", NEVER)
            if is_enough or is_gone or part.deadline <= now or part.kind is Kind.ONEWAY:
                failures.append(Failure([part], error))
            else:
                again.append(part)
        others = [name for name, _ in self.queues.shards if name != batch.lane.broker_name]
        attempts = max((part.attempts for part in again), default=1)
        may_ask = attempts <= len(others) or not is_unwritable(error)  # none is avoided for that: not in circles
        has_other = may_ask and not all(self._health.is_avoided(name, now * 1000) for name in others)
        retry_at = now + back_off_s(attempts)
        self._again(batch.lane, again, retry_at, 0.0 if has_other else retry_at, is_moving)
        return failures

    def _again(self, lane: Lane, parts: list[Part], keyed_at: float, free_at: float, is_moving: bool) -> None:
        """Queue parts that are known not to be stored, before everything that came after them."""
        keyed = [part for part in parts if part.is_bound]
        self._requeue((part for part in parts if not part.is_bound), free_at)
        if keyed and is_moving:
            self._requeue([*keyed, *lane.pending], keyed_at)
            lane.pending.clear()
        elif keyed:
            lane.pending.extendleft(reversed(keyed))
            lane.retry_at = keyed_at

    def _requeue(self, parts: Iterable[Part], not_before: float) -> None:
        """Put parts whose queue may be chosen again before everything that waits."""
        for part in reversed(list(parts)):
            part.queue_ids = None
            part.not_before = not_before
            self._line_of(part).appendleft(part)

    def _give_up(self, batch: Batch) -> Failure:
        error = batch.unknown or OutcomeUnknown(f"topic {self.topic}: no answer")
        return self.failed(batch, reworded(error, "not known to be stored when the time was up"))
