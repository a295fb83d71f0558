"""Records the SQL92 conditions of those who join, as RocketMQ's ``consumerFilter.json`` has them."""

from __future__ import annotations

import asyncio
import logging

from penstock.formats.sql92 import EXPRESSION_LENGTH_MAX, parse_condition
from penstock.proto import names
from penstock.proto.errors import InvalidArgument, PenstockError
from penstock.proto.wire.broker_pb2 import ConsumerRequest, Filter

from ..core.core import Core
from ..core.tables.consumer_filters import (
    CONSUMER_FILTER,
    CONSUMER_FILTER_DELETED,
    FILTERS_MAX,
    ConsumerFilter,
    ConsumerFilters,
    name_of,
)
from ..core.wire import in_turns

log = logging.getLogger(__name__)


class FilterRecords:
    """Compares what a member subscribes with the table; event loop only. A slave records nothing."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._table = core.tables[ConsumerFilters]
        self._has_warned = False

    async def on_joined(self, join: ConsumerRequest.Join) -> None:
        """Record new conditions, drop those of topics subscribed otherwise or not. What fails keeps no member away."""
        wanted = {topic: each.expression for topic, each in join.subscriptions.items() if each.kind == Filter.SQL92}
        try:
            for topic, expression in sorted(wanted.items()):
                if self._record(topic, join.group, expression):
                    await asyncio.sleep(0)  # a condition may be long
            async for topic in in_turns(self._table.topics_of(join.group)):
                journal = self._core.events.journal
                if topic not in wanted and journal is not None:
                    journal.put(CONSUMER_FILTER_DELETED, {"topic": topic, "consumerGroup": join.group})
        except PenstockError as error:
            log.warning("conditions of a group not recorded group=%s error=%s", join.group, error.message)

    def _record(self, topic: str, group: str, expression: str) -> bool:
        """Record one condition, if it is news. Returns True if it was looked at closely."""
        journal, known = self._core.events.journal, self._table.get(name_of(topic, group))
        if journal is None or (known is not None and known.expression == expression):
            return False
        if known is None and len(self._table) >= FILTERS_MAX:
            if not self._has_warned:
                self._has_warned = True
                log.warning("consumerFilter.json has %d entries, more are left out group=%s", FILTERS_MAX, group)
            return False
        if _is_condition(names.check_topic(topic), expression):
            now_ms = self._core.clock.wall_ms()
            journal.put(CONSUMER_FILTER, ConsumerFilter.new(topic, group, expression, now_ms).to_json())
        return True


def _is_condition(topic: str, expression: str) -> bool:
    """False for what fetches are refused for; RocketMQ would not take it either."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        return False
    try:
        parse_condition(expression)
    except InvalidArgument as error:
        log.info("condition not recorded topic=%s error=%.200s", topic, error.message)
        return False
    return True
