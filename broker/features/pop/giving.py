"""Giving messages out: what of which queue a receive gets, and the op that says so."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock.formats.record.kernels.pairs import name_hash
from penstock.formats.record.reposting.pops import origin_topics, queue_offsets
from penstock.proto import names
from penstock.proto.errors import FlowControl
from penstock.proto.frames import allocate, new_bytes, pack
from penstock.proto.wire import pop_pb2 as wire
from penstock.runtime.data.sending import Data

from ...core.core import Core
from ...core.dispatch import Asked
from ...core.journal import Journal
from ...store.absent import Absent, AbsentEntries, uncached
from ...store.results import ReadResult, ReadStatus
from .ops import NOTHING, Kind, Longs, Op
from .queue import PopQueue
from .request import Looked, Subscribed, Wanted
from .state import PopState

log = logging.getLogger(__name__)

SEARCHED_BYTES: Final = 2 << 20
"""Of records, by a condition in one go: some milliseconds."""
SCANS_MAX: Final = 16
BROUGHT_BYTES: Final = 4 << 20
"""So much of old records is brought into memory ahead, and taken to stay there for :data:`BROUGHT_S`."""
BROUGHT_S: Final = 5.0
LARGE_BYTES: Final = 64 << 10
"""Of records: a smaller reply is one piece."""


@dataclass(slots=True)
class Part:
    """Messages of one queue for one receive."""

    queue: PopQueue
    read: ReadResult
    times: list[int] = field(default_factory=list)
    """How often each was given out in its place before; none: never."""


@dataclass(slots=True)
class Given:
    """What a receive gets."""

    parts: list[Part] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    full: int = 0
    """Queues of which so much is in flight that nothing more is given."""
    point: int = -1
    received_ms: int = 0
    visible_ms: int = 0

    def add(self, part: Part, op: Op) -> None:
        """These messages go to the receiver."""
        self.parts.append(part)
        self.ops.append(op)
        self.count += part.read.count
        self.bytes += part.read.bytes


class Giver:
    """Gives out what is free; event loop only, and nothing is awaited from the first look to the record."""

    def __init__(self, core: Core, state: PopState) -> None:
        self._core = core
        self._store = core.store
        self._reader = core.store.reader
        self._picker = core.store.picker
        self._state = state
        self._settings = core.config.pop
        self._turn = 0

    def asked(self, wanted: Wanted) -> Asked:
        """The messages that a receive wants next."""
        for each in (*wanted.subscribed, self._retries(wanted)):
            yield each.topic, self._nexts(wanted.group, each)

    def looked_at(self, journal: Journal, wanted: Wanted) -> list[Looked]:
        """The queues of a receive in the order in which they are looked at.

        Another one is first each time, every other time a retry queue. Where nobody has said where the group begins in
        a queue, that is recorded.

        Raises as :meth:`Journal.append`.
        """
        known = wanted.queues
        if known.changes != self._changes:
            retried = self._retries(wanted)
            retries = self._of(journal, wanted, retried)
            own: list[Looked] = []
            for each in wanted.subscribed:
                own += self._of(journal, wanted, each)
            known.retries, known.own, known.changes = retries, own, self._changes
            if len(retries) + len(own) < sum(len(each.queue_ids) for each in (retried, *wanted.subscribed)):
                known.changes = (-1, -1)
        start = (self._turn // 2) % max(len(known.own), 1)
        queues = known.own[start:] + known.own[:start]
        return known.retries + queues if self._turn % 2 else queues + known.retries

    @property
    def _changes(self) -> tuple[int, int]:
        return self._state.changes, self._core.tables.topics.changes

    def absent(self, wanted: Wanted, queues: Iterable[Looked]) -> list[Absent | AbsentEntries]:
        """What a receive would look at and is not in memory, about."""
        now_s = self._core.clock.monotonic_s()
        for each, queue in queues:
            if queue.next >= queue.brought or now_s >= queue.brought_s + BROUGHT_S:
                size, place = max(wanted.max_bytes, BROUGHT_BYTES), (queue.topic, queue.queue_id, queue.next)
                parts, queue.brought = self._reader.absent_until(*place, size)
                queue.brought_s = now_s
                if parts:  # one queue a receive, also where they are in memory: there may be thousands of queues
                    return [*self._reader.absent_entries(*place, queue.brought - queue.next), *uncached(parts)]
            if not queue.is_orderly and each.takes_all and self._has_room(wanted, queue):
                break  # it has enough by itself
        return []

    def _has_room(self, wanted: Wanted, queue: PopQueue) -> bool:
        """True if all that is wanted lies in memory, and may be given out."""
        count = min(queue.brought - queue.next, self._settings.queue_in_flight_max - len(queue))
        return count >= wanted.max_messages

    def give(self, journal: Journal, wanted: Wanted, queues: Iterable[Looked], now_ms: int, is_orderly: bool) -> Given:
        """Take what there is in ``queues`` and record it; nothing is found: no op.

        Raises:
            FlowControl: everything that there might be is held up by what is in flight.
            As :meth:`Journal.append`: nothing was given.
        """
        self._turn += 1
        given = Given(received_ms=now_ms, visible_ms=now_ms + wanted.invisible_ms)
        if self._state.in_flight >= self._settings.in_flight_max:
            raise FlowControl(
                f"receive of group {wanted.group}: {self._state.in_flight} messages of all groups are in flight "
                "(popInflightMessageMax): acknowledge some first"
            )
        for each, queue in queues:
            if given.count >= wanted.max_messages or given.bytes >= wanted.max_bytes:
                break
            self._give_queue(given, wanted, each, queue, is_orderly)
        if given.full and not given.count:
            raise FlowControl(
                f"receive of group {wanted.group}: of {given.full} queues "
                f"{self._settings.queue_in_flight_max} messages each are in flight (popInflightMessageThreshold): "
                "acknowledge some first"
            )
        if given.ops:
            given.point = self._state.record(journal, given.ops)
            for part in given.parts:
                part.queue.attempt = wanted.attempt
        return given

    def pieces(self, given: Given, epoch: int) -> list[Data]:
        """The framed reply: of a large one, records that lie together are sent from the log, which they keep."""
        reply = self._reply(given, epoch)
        if given.bytes < LARGE_BYTES:
            message, address = allocate(reply, given.bytes)
            for part in given.parts:
                size = part.read.bytes
                part.read.copy_to(address)
                address += size
            return [message]
        pieces: list[Data] = [pack(reply)]
        for part in given.parts:
            views = part.read.views()
            if not views:
                copied, room = new_bytes(part.read.bytes)
                part.read.copy_to(np.frombuffer(room, np.uint8).ctypes.data)
                views = [memoryview(copied)]
            pieces += views
        return pieces

    def _reply(self, given: Given, epoch: int) -> wire.ReceiveReply:
        reply = wire.ReceiveReply(
            check_point=given.point, epoch=epoch, received_ms=given.received_ms, visible_ms=given.visible_ms
        )
        for part in given.parts:
            queue = part.queue
            reply.results.add(
                topic=queue.topic,
                queue_id=queue.queue_id,
                bytes=part.read.bytes,
                count=part.read.count,
                redelivered=part.times if any(part.times) else (),
            )
            self._core.counters.topic(queue.topic).on_fetched(part.read.count, part.read.bytes)
        return reply

    def _of(self, journal: Journal, wanted: Wanted, each: Subscribed) -> list[Looked]:
        state, group, topic = self._state, wanted.group, each.topic
        found = [(each, state.queue(group, topic, queue_id)) for queue_id in each.queue_ids]
        unknown = [queue_id for queue_id, (_, queue) in zip(each.queue_ids, found, strict=True) if queue is None]
        if unknown:
            has_others = bool(self._core.tables.offsets.row(group, topic))
            at_end = not wanted.begins_first and not has_others and not topic.startswith(names.RETRY_PREFIX)
            begins = {}
            for queue_id in unknown:
                low, high = self._reader.queue_range(topic, queue_id)
                committed = self._core.tables.offsets.get(group, topic, queue_id)
                begins[queue_id] = committed if committed >= 0 else (high if at_end else low)
            state.begin(journal, group, topic, begins)
            found = [(each, state.queue(group, topic, queue_id)) for queue_id in each.queue_ids]
        return [(each, queue) for each, queue in found if queue is not None]

    def _nexts(self, group: str, each: Subscribed) -> Iterator[tuple[int, int]]:
        for queue_id in each.queue_ids:
            queue = self._state.queue(group, each.topic, queue_id)
            yield queue_id, -1 if queue is None else queue.next

    def _retries(self, wanted: Wanted) -> Subscribed:
        topic = names.RETRY_PREFIX + wanted.group
        return Subscribed(topic, range(self._core.tables.read_queues(topic)), None, None)

    def _give_queue(self, given: Given, wanted: Wanted, each: Subscribed, queue: PopQueue, is_orderly: bool) -> None:
        now_ms = given.received_ms
        left = wanted.max_messages - given.count
        if queue.is_blocked(now_ms):
            if wanted.attempt and queue.attempt == wanted.attempt:
                rows = queue.rows
                out = rows.offsets[(rows.visible > now_ms) & (rows.finished == 0)]
                self._give_again(given, wanted, queue, out[:left], Kind.CHANGE)
        elif queue.is_orderly and len(queue.exhausted(now_ms, self._tries_max(queue))):
            return  # they become dead letters, and the queue goes on
        elif queue.is_orderly and len(queue):
            self._give_again(given, wanted, queue, queue.rows.offsets[:left].copy(), Kind.AGAIN)
        elif queue.topic.startswith(names.RETRY_PREFIX) and not is_orderly:
            self._give_retries(given, wanted, each, queue)
        else:
            given_back = queue.given_back()[:left]
            if len(given_back):
                self._give_again(given, wanted, queue, given_back, Kind.CHANGE)
            if given.count < wanted.max_messages and given.bytes < wanted.max_bytes:
                self._give_new(given, wanted, each, queue, is_orderly)

    def _tries_max(self, queue: PopQueue) -> int:
        return self._core.tables.group_or_default(queue.group).retry_max_times

    def _give_new(self, given: Given, wanted: Wanted, each: Subscribed, queue: PopQueue, is_orderly: bool) -> None:
        read = self._read(given, wanted, each, queue)
        if read is not None and read.count:
            offsets = _offsets_of(read)
            op = self._op(Kind.POP, queue, offsets, read.next_offset, given.visible_ms, is_orderly)
            given.add(Part(queue, read), op)

    def _read(self, given: Given, wanted: Wanted, each: Subscribed, queue: PopQueue) -> ReadResult | None:
        """New messages; None without any. Those that nobody wants are passed over."""
        count = min(wanted.max_messages - given.count, self._settings.queue_in_flight_max - len(queue))
        size = max(wanted.max_bytes - given.bytes, 1)
        if count <= 0:
            given.full += not queue.topic.startswith(names.RETRY_PREFIX)
            return None
        for _ in range(SCANS_MAX):
            read = self._reader.read(
                *(queue.topic, queue.queue_id, queue.next, size),
                max_count=count,
                tags=each.tags,
                condition=each.condition,
                max_searched=SEARCHED_BYTES,
            )
            if read.status is ReadStatus.FOUND:
                return read if not given.count or read.bytes <= size else None
            if read.status is ReadStatus.DAMAGED:
                log.error("record passed over group=%s problem=%s", queue.group, read.problem)
            elif read.status not in (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_TOO_SMALL):
                return None
            queue.next = read.next_offset
        return None

    def _give_retries(self, given: Given, wanted: Wanted, each: Subscribed, queue: PopQueue) -> None:
        """Messages of the retry topic whose own topics are wanted; others that are met on the way are parked."""
        homes = np.array([name_hash(each.topic) for each in wanted.subscribed], np.int64)
        left = wanted.max_messages - given.count
        parked = queue.parked(homes)
        if len(given_back := queue.given_back()):
            parked = np.union1d(parked, self._of_homes(queue, given_back, homes))
        parked = parked[:left]
        if len(parked):
            self._give_again(given, wanted, queue, parked, Kind.CHANGE)
        if given.count >= wanted.max_messages or given.bytes >= wanted.max_bytes:
            return
        read = self._read(given, wanted, each, queue)
        if read is None or not read.count:
            return
        offsets, origins = _offsets_of(read), _origins_of(read)
        is_wanted = np.isin(origins, homes) | (origins == 0)
        ops = [
            self._op(Kind.PARK, queue, offsets[(origins == origin) & ~is_wanted], queue.next, origin)
            for origin in np.unique(origins[~is_wanted]).tolist()
        ]
        chosen = offsets[is_wanted]
        if len(chosen):
            picked = self._picker.locate(queue.topic, queue.queue_id, chosen)
            op = self._op(Kind.POP, queue, chosen, read.next_offset, given.visible_ms)
            given.ops += ops
            given.add(Part(queue, self._picker.read(picked)), op)
        else:
            given.ops += [*ops[:-1], ops[-1]._replace(next=read.next_offset)]

    def _of_homes(self, queue: PopQueue, offsets: Longs, homes: Longs) -> Longs:
        """Those offsets of the retry topic whose messages' own topics are wanted."""
        picked = self._picker.sound(self._picker.locate(queue.topic, queue.queue_id, offsets))
        origins = np.empty(len(picked.offsets), np.int64)
        starts = np.cumsum(picked.sizes, dtype=np.int64) - picked.sizes
        origin_topics(self._picker.join(picked), starts, picked.sizes, origins)
        # One that is gone from the log is finished by whoever is given it.
        return np.setdiff1d(offsets, picked.offsets[~np.isin(origins, homes) & (origins != 0)])

    def _give_again(self, given: Given, wanted: Wanted, queue: PopQueue, offsets: Longs, kind: Kind) -> None:
        """Messages that were given out, or parked, before. What is gone from the log is finished."""
        picked = self._picker.sound(self._picker.locate(queue.topic, queue.queue_id, offsets))
        fits = np.searchsorted(np.cumsum(picked.sizes, dtype=np.int64), wanted.max_bytes - given.bytes, side="right")
        lost = np.setdiff1d(offsets, picked.offsets)
        if len(lost):
            log.error("messages in flight are gone group=%s topic=%s count=%d", queue.group, queue.topic, len(lost))
            given.ops.append(self._op(Kind.DONE, queue, lost, 0, 0, queue.is_orderly))
        if not len(picked.offsets) or (not fits and given.count):
            return
        picked = picked.part(np.arange(max(int(fits), 1)))
        times = queue.times_of(picked.offsets, kind)
        part = Part(queue, self._picker.read(picked), times.tolist())
        given.add(part, self._op(kind, queue, picked.offsets, 0, given.visible_ms, queue.is_orderly))

    @staticmethod
    def _op(kind: Kind, queue: PopQueue, offsets: Longs, following: int, at_ms: int, is_orderly: bool = False) -> Op:
        return Op(kind, queue.group, queue.topic, queue.queue_id, offsets, following, at_ms, is_orderly)


def _offsets_of(read: ReadResult) -> Longs:
    found, at = np.empty(read.count, np.int64), 0
    for source, positions, _ in read.parts:
        queue_offsets(source, positions, found[at : at + len(positions)])
        at += len(positions)
    return found


def _origins_of(read: ReadResult) -> Longs:
    parts = [NOTHING]
    for source, positions, sizes in read.parts:
        parts.append(np.empty(len(positions), np.int64))
        origin_topics(source, positions, sizes, parts[-1])
    return np.concatenate(parts)
