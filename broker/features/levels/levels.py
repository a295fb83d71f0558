"""Messages with a delay level. See :mod:`.level_queues`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from penstock.formats.attributes.message_types import MessageType
from penstock.formats.delay_levels import levels_ms
from penstock.formats.record.reposting.timers import TimerStatus, check_waiting
from penstock.proto import names
from penstock.proto.errors import InvalidArgument, PenstockError

from ...core.core import Core
from ...core.feature import Feature, Hold
from ...core.intake import DELAYED, Intake, refused
from ...core.journal import Journal, Target
from ...core.metrics import Families
from ...core.tables.topics import Topic
from .level_queues import LevelQueues
from .level_table import LevelTable

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
RETRY_S: Final = 5.0


class DelayLevels(Feature, Intake):
    """Takes such messages into RocketMQ's schedule topic, and has them delivered."""

    tables = (LevelTable,)
    message_type = MessageType.DELAY

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        levels = levels_ms(core.config.store.delay_levels)
        self._count = len(levels)
        self.queues = LevelQueues(core, levels)

    def intakes(self) -> Mapping[int, Intake]:
        return {DELAYED: self}

    def target(self, topic: Topic) -> Target:
        return Target(names.SCHEDULE_TOPIC, self._count)

    def check(self, records: memoryview, topic: Topic) -> None:
        name = np.frombuffer(topic.name.encode(), np.uint8)
        status, index = check_waiting(np.frombuffer(records, np.uint8), name, topic.queues, self._count, True)
        if status == TimerStatus.OK:
            self.core.store.lights.check(topic.name, records)
            return
        if status == TimerStatus.BAD_LEVEL:
            raise InvalidArgument(
                f"topic {topic.name}, record {index} of the batch: its delay level is none of 1..{self._count}, which "
                "this broker has (messageDelayLevel)",
                index=int(index),
            )
        raise refused(TimerStatus(status), int(index), topic, "message with a delay level", "delivery")

    def holds(self) -> Iterable[Hold]:
        first = self.queues.first_waiting()
        if first is not None:
            yield Hold("a message waits for its delay level", first, self.queues.on_taken, self.queues.make_way)

    def describe(self, families: Families) -> None:
        queues = self.queues
        rows = [((str(level),), count) for level, count in queues.waiting()]
        families.gauges("penstock_level_waiting", "Messages that wait for their delay level", ("level",), rows)
        families.counter(
            "penstock_level_delivered", "Messages delivered when their delay level was over", queues.delivered
        )
        families.counter("penstock_level_moved", "Messages stored anew while they wait", queues.moved)
        families.counter("penstock_level_dropped", "Their topic, or they, are gone", queues.dropped)

    def on_role(self, journal: Journal | None) -> None:
        self.queues.on_role(journal)

    async def run(self) -> None:
        """Deliver what is due; what goes wrong is logged and tried again."""
        await self.take_turns(self.queues.turn, TICK_S, RETRY_S, "delivery by delay level postponed")

    async def stop(self) -> None:
        try:
            self.queues.record()
        except PenstockError as error:  # the log tells what was delivered all the same
            log.warning("progress of delay levels not recorded error=%s: %s", type(error).__name__, error)
