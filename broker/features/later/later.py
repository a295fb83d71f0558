"""Messages for later: stored at once, delivered at their time. See :mod:`.timers`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from penstock.formats.attributes.message_types import MessageType
from penstock.formats.record.reposting.timers import TimerStatus, check_waiting
from penstock.proto import names
from penstock.proto.errors import FlowControl, InvalidArgument
from penstock.proto.wire import later_pb2

from ...core.core import Core
from ...core.feature import Feature, Hold
from ...core.intake import LATER, Intake, refused, writable_topic
from ...core.journal import Journal, Target
from ...core.metrics import Families
from ...core.tables.topics import Topic
from ...core.wire import Service, service
from .recalls import Recall
from .timer_table import TimerTable
from .timers import Timers

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
RETRY_S: Final = 5.0
KEY_LENGTH_MAX: Final = 255


class Later(Feature, Intake):
    """Takes such messages into the timer topic, and has them delivered."""

    tables = (TimerTable,)
    message_type = MessageType.DELAY

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.timers = Timers(core)
        self._settings = core.config.timers

    def services(self) -> Iterable[Service]:
        yield service(
            later_pb2.DESCRIPTOR.services_by_name["Later"],
            before=self.core.dispatcher.catch_up,
            Recall=self.recall,
        )

    def intakes(self) -> Mapping[int, Intake]:
        return {LATER: self}

    def target(self, topic: Topic) -> Target:
        return Target(names.TIMER_TOPIC, 1)

    def check_room(self) -> None:
        waiting = self.timers.waiting
        if waiting >= self._settings.messages_max:
            raise FlowControl(f"{waiting} messages wait for their time (timerMessagesMax): send later")

    def check(self, records: memoryview, topic: Topic) -> None:
        self.check_room()
        name = np.frombuffer(topic.name.encode(), np.uint8)
        status, index = check_waiting(np.frombuffer(records, np.uint8), name, topic.queues, self._latest_ms(), False)
        if status == TimerStatus.OK:
            self.core.store.lights.check(topic.name, records)
            return
        if status == TimerStatus.TOO_LATE:
            raise InvalidArgument(
                f"topic {topic.name}, record {index} of the batch: due more than {self._settings.delay_s_max} s "
                "(timerMaxDelaySec) from now",
                index=int(index),
            )
        raise refused(TimerStatus(status), int(index), topic, "message for later", "delivery")

    async def recall(self, request: later_pb2.RecallRequest) -> later_pb2.RecallReply:
        """Take a message back before its time.

        Raises:
            InvalidName, InvalidArgument, Forbidden, TopicNotFound: nothing was done.
            NotMaster, NotEnoughReplicas, BrokerUnavailable, FlowControl, DiskFull: the same; repeat the call.
            OutcomeUnknown: done, and not known to be safe; repeat the call.
        """
        topic, key = writable_topic(self.core, request.topic), request.unique_key
        if not 0 < len(key) <= KEY_LENGTH_MAX or not key.isprintable():
            raise InvalidArgument(f"recall from topic {topic.name}: {key!r:.80} is no message id: take the receipt's")
        if not 0 < request.due_ms <= self._latest_ms():
            raise InvalidArgument(f"recall from topic {topic.name}: no message can be due at {request.due_ms} ms")
        journal = self.core.acknowledging()
        self.check_room()
        end = self.timers.recall(journal, Recall(topic.name, key, request.due_ms))
        if end is None:
            return later_pb2.RecallReply(in_time=False)
        await self.core.acknowledgements.safe(end, f"recall of message {key} from topic {topic.name}")
        return later_pb2.RecallReply(in_time=True)

    def _latest_ms(self) -> int:
        return self.core.clock.wall_ms() + self._settings.delay_s_max * 1000

    def holds(self) -> Iterable[Hold]:
        first = self.timers.first_waiting()
        if first is not None:
            yield Hold("a message waits for its time", first, self.timers.on_taken, self.timers.make_way)

    def describe(self, families: Families) -> None:
        timers = self.timers
        families.gauge("penstock_timer_waiting", "Messages that wait for their time", timers.waiting)
        families.counter("penstock_timer_delivered", "Messages delivered at their time", timers.delivered)
        families.counter("penstock_timer_rolled", "Messages stored anew while they wait", timers.rolled)
        families.counter("penstock_timer_recalled", "Messages taken back before their time", timers.recalled)
        families.counter("penstock_timer_dropped", "Their topic, or they, are gone", timers.dropped)
        families.counter(
            "penstock_timer_foreign_marks", "Deliveries made despite a forged mark", timers.reposter.foreign
        )

    def on_role(self, journal: Journal | None) -> None:
        self.timers.on_role(journal)

    async def run(self) -> None:
        """Deliver what is due; what goes wrong is logged and tried again."""
        await self.take_turns(self.timers.turn, TICK_S, RETRY_S, "delivery of messages for later delayed")
