"""Messages that a consumer could not take come again later, and become dead letters in the end.

The consumer names them by their place; their copies are made from the log. A dead letter that its own group sends back
is tried anew, as often as any other message, as one of the topic that it was sent to. To another group that consumes
dead letters they are messages of the topic where they lie. What comes again is a message for later whose topic is
``%RETRY%`` and the group, so whoever delivers those delivers it, once; a dead letter goes into ``%DLQ%`` and the group
at once. Both batches carry the sender's mark, so a call that is repeated, here or at the next master, stores nothing
again. The mark's digest says how many tries were allowed: which messages of the call are in which batch follows from
that, even where the group's settings are others by now.

Source: RocketMQ ``AbstractSendMessageProcessor#consumerSendMsgBack``; differs: many messages a call, idempotent, waits
for the configured safety, and without a retry queue a message is a dead letter, not dropped.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from penstock.formats.delay_levels import levels_ms
from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.properties import PROPERTIES_BYTES_MAX
from penstock.formats.record.reposting.retries import PROPERTIES_GROWTH_MAX
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    TopicNotFound,
)
from penstock.proto.wire import retry_pb2

from ...core.core import Core
from ...core.failed import DEAD_QUEUES, ensure_topic, failed_copies, group_or_new, tried_times
from ...core.feature import Feature
from ...core.intake import LATER, check_producer
from ...core.journal import Journal, Target
from ...core.metrics import Families
from ...core.reposting import Records, Reposter
from ...core.tables.groups import Group
from ...core.tables.producers import Receipt
from ...core.wire import Service, service
from .plan import Asked, allowed_times, due_times, is_dead

log = logging.getLogger(__name__)

LANE: Final = 0
RECORD_ROOM: Final = 64 * 1024
"""A single message may be as large as any, properties and all."""
_NEVER: Final = np.empty(0, np.int64)


class Retry(Feature):
    """Takes messages back from consumers."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._reposter = Reposter(core)
        self._levels_ms = levels_ms(core.config.store.delay_levels)
        self._bytes_max = core.config.store.body_bytes_max + RECORD_ROOM
        self._known_end = 0  # of the log, when this broker became master: a queue is known once that is dispatched
        self._later: Counter[str] = Counter()  # by group, like the next
        self._dead: Counter[str] = Counter()

    def services(self) -> Iterable[Service]:
        yield service(
            retry_pb2.DESCRIPTOR.services_by_name["Retry"],
            before=self.core.dispatcher.catch_up,
            SendBack=self.send_back,
        )

    def describe(self, families: Families) -> None:
        for name, doc, found in (
            ("penstock_retry_messages", "Messages that a consumer sent back to come again", self._later),
            ("penstock_dlq_messages", "Messages that became dead letters", self._dead),
        ):
            rows = [((group,), count) for group, count in found.items()]
            families.counters(name, doc, ("consumer_group",), rows)

    def on_role(self, journal: Journal | None) -> None:
        self._known_end = self.core.store.end_offset

    async def send_back(self, request: retry_pb2.SendBackRequest) -> retry_pb2.SendBackReply:
        """Have messages come again, or make them dead letters.

        Raises:
            InvalidName, InvalidArgument, Forbidden, TopicNotFound, GroupNotFound, MessageTooLarge: nothing was stored.
            NotMaster, NotEnoughReplicas, BrokerUnavailable, FlowControl, DiskFull: not all is stored; repeat the call.
            OutcomeUnknown: stored, and not known to be safe; repeat the call.
            LaneForgotten: made again, and nobody knows whether it was done before; nothing was stored now.
        """
        check_producer(request.producer_id)
        asked = Asked.of(request)
        if not self.core.events.is_open:
            raise BrokerUnavailable("the broker is shutting down")
        journal = self.core.writable()
        self._check_topic(request)
        picked = await self._reposter.locate(request.topic, request.queue_id, asked.offsets)
        if len(picked.offsets) < len(asked.offsets) and self.core.store.dispatched_offset < self._known_end:
            raise BrokerUnavailable(f"topic {request.topic}: what the log held is not all in its queues yet: try again")
        size = int(picked.sizes.sum())
        if size > self._bytes_max and len(picked.offsets) > 1:
            raise MessageTooLarge(
                f"send-back of {len(picked.offsets)} messages of {size} bytes: at most {self._bytes_max} bytes are "
                "allowed for more than one: send fewer at once"
            )
        records = await self._reposter.read_as_master(journal, picked)
        reply, end = self._store(journal, request, asked, records)
        await self.core.acknowledgements.safe(end, f"send-back of group {request.group}")
        return reply

    def _check_topic(self, request: retry_pb2.SendBackRequest) -> None:
        topic = names.check_topic(request.topic)
        if names.is_system_topic(topic):
            raise Forbidden(f"topic {topic} is internal: clients do not consume it")
        if request.queue_id >= self.core.tables.read_queues(topic):
            raise TopicNotFound(f"topic {topic} has no queue {request.queue_id} at this broker", topic=topic)

    # Without waiting: what is stored already cannot change in between.

    def _store(
        self, journal: Journal, request: retry_pb2.SendBackRequest, asked: Asked, records: Records
    ) -> tuple[retry_pb2.SendBackReply, int]:
        """Append the copies that are missing; the answer, and the end of all of them in the log."""
        group = group_or_new(self.core, request.group)
        dead_topic = names.DLQ_PREFIX + group.name
        later_before, dead_before = self._found(request, (names.TIMER_TOPIC, dead_topic))
        before = later_before or dead_before
        allowed = before.digest - 1 if before is not None else allowed_times(group, request)

        stored_times, properties = tried_times(records, request.topic)
        is_resent = request.topic == dead_topic
        if is_resent:
            allowed = max(allowed, 1)  # somebody wants them to be tried anew: once at least
        are_again = is_resent or request.topic.startswith(names.RETRY_PREFIX)
        places = np.searchsorted(asked.offsets, records.offsets)
        times, levels = np.maximum(stored_times, asked.times[places]), asked.levels[places]
        dies = is_dead(levels, times, properties + PROPERTIES_GROWTH_MAX <= PROPERTIES_BYTES_MAX, allowed)
        later, dead = np.flatnonzero(~dies), np.flatnonzero(dies)
        end = max((each.end for each in (later_before, dead_before) if each is not None), default=0)
        # All of it is made before the first append: a call that is refused has stored none of its messages.
        made: list[tuple[Target, memoryview, ProducerMark]] = []
        if len(later) and later_before is None:
            due = due_times(levels[later], times[later], group, self._levels_ms, self.core.clock.due_ms())
            where, target = self._later_place(journal, group, request.queue_id)
            mark = self._mark(request, len(later), allowed)
            batch = failed_copies(records, later, times, due, target.topic, where, mark, are_again=are_again)
            made.append((target, batch, mark))
        if len(dead) and dead_before is None:
            ensure_topic(self.core, journal, dead_topic, DEAD_QUEUES)
            mark = self._mark(request, len(dead), allowed)
            batch = failed_copies(records, dead, times, _NEVER, dead_topic, b"", mark, are_again=are_again)
            made.append((Target(dead_topic, DEAD_QUEUES), batch, mark))
        for target, batch, mark in made:
            end = journal.append(target, batch, mark, count=mark.count, is_kept=True).end
            (self._dead if target.topic == dead_topic else self._later)[group.name] += mark.count
        if len(dead) and dead_before is None:
            log.warning(
                "messages became dead letters group=%s topic=%s queue=%d count=%d first_offset=%d",
                *(group.name, request.topic, request.queue_id, len(dead), records.offsets[dead[0]]),
            )
        gone = np.setdiff1d(asked.offsets, records.offsets)
        return retry_pb2.SendBackReply(later=len(later), dead=len(dead), gone=gone.tolist()), end

    def _found(self, request: retry_pb2.SendBackRequest, topics: Iterable[str]) -> list[Receipt | None]:
        """Where that call's batches in ``topics`` are, if they are there."""
        producers, who = self.core.tables.producers, request.producer_id
        # The lane of a call's newest batch is the last of its producer's to be forgotten.
        again = request.again and all(producers.last_sequence(who, topic, LANE) is None for topic in topics)
        found = [producers.find_duplicate(who, 0, each, LANE, request.sequence, again=again) for each in topics]
        if any(each is not None and not each.digest for each in found):
            raise InvalidArgument(f"producer {who:016x} sends messages too: give send-backs their own")
        return found

    def _mark(self, request: retry_pb2.SendBackRequest, count: int, allowed: int) -> ProducerMark:
        return ProducerMark(request.producer_id, 0, LANE, request.sequence, count, allowed + 1)

    def _later_place(self, journal: Journal, group: Group, queue_id: int) -> tuple[bytes, Target]:
        """The properties that say where a message comes again, and where it waits until then."""
        intake = self.core.features.intakes[LATER]
        intake.check_room()
        topic = ensure_topic(self.core, journal, names.RETRY_PREFIX + group.name, group.retry_queues)
        where = f"REAL_TOPIC\x01{topic.name}\x02REAL_QID\x01{queue_id % topic.read_queues}\x02"
        return where.encode(), intake.target(topic)
