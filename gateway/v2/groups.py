"""What brokers have of consumer groups, as far as clients are told: asked now and then, and never waited for long."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.client import GroupNotFound, PenstockError
from penstock.client.cluster import Calls
from penstock.proto.wire.broker_pb2 import GroupDescription
from penstock.proto.wire.common_pb2 import RetryPolicy

from .brokers import Brokers

AGE_S: Final = 5.0
WAIT_S: Final = 2.0
"""Clients give up on settings that are not there within seconds."""
_CACHED: Final = 10_000
RETRY_TIMES: Final = 16
_ASK_S: Final = 3.0


class GroupSettings(NamedTuple):
    """Of a group that nobody has made yet: the defaults."""

    is_fifo: bool = False
    retry_max_times: int = RETRY_TIMES
    retry_policy: RetryPolicy | None = None


class Groups:
    """Configurations by group. Event loop only."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: OrderedDict[str, tuple[float, GroupSettings]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[GroupSettings]] = {}

    async def config(self, group: str) -> GroupSettings:
        """What is known of the group, at most some seconds old where brokers answer."""
        known = self._known.get(group)
        if known is not None and time.monotonic() - known[0] < AGE_S:
            return known[1]
        asking = self._asking.get(group)
        if asking is None:
            asking = self._asking[group] = asyncio.create_task(self._ask(group))
            asking.add_done_callback(lambda _: self._asking.pop(group, None))
        done, _ = await asyncio.wait({asking}, timeout=WAIT_S)
        if done:
            return asking.result()
        return known[1] if known is not None else GroupSettings()

    async def _ask(self, group: str) -> GroupSettings:
        known = self._known.get(group)
        try:
            found = await self._brokers.in_thread(_described, self._brokers.calls, group)
        except PenstockError as error:
            if known is not None and not isinstance(error, GroupNotFound):
                return known[1]
            found = GroupSettings()
        self._known[group] = time.monotonic(), found
        self._known.move_to_end(group)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return found


def _described(calls: Calls, group: str) -> GroupSettings:
    answers, _ = calls.describe_group(group, _ASK_S)
    described: GroupDescription = answers[min(answers)]
    config = described.config
    policy = config.retry_policy if config.HasField("retry_policy") else None
    return GroupSettings(config.orderly, config.retry_max_times, policy)
