"""What brokers have of consumer groups, as far as clients are told: asked now and then, and never waited for long."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from penstock.client import GroupNotFound, PenstockError
from penstock.client.cluster import Calls
from penstock.proto.wire.common_pb2 import GroupConfig

from .brokers import Brokers

AGE_S: Final = 5.0
WAIT_S: Final = 2.0
"""Clients give up on settings that are not there within seconds."""
_CACHED: Final = 10_000
RETRY_TIMES: Final = 16
_ASK_S: Final = 3.0
_UNKNOWN: Final = GroupConfig(retry_max_times=RETRY_TIMES)
"""Of a group that nobody has made yet: the defaults."""


class Groups:
    """Configurations by group. Event loop only."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: OrderedDict[str, tuple[float, GroupConfig]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[GroupConfig]] = {}

    async def config(self, group: str) -> GroupConfig:
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
        return known[1] if known is not None else _UNKNOWN

    async def _ask(self, group: str) -> GroupConfig:
        known = self._known.get(group)
        try:
            found = await self._brokers.in_thread(_described, self._brokers.calls, group)
        except PenstockError as error:
            if known is not None and not isinstance(error, GroupNotFound):
                return known[1]
            found = _UNKNOWN
        self._known[group] = time.monotonic(), found
        self._known.move_to_end(group)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return found


def _described(calls: Calls, group: str) -> GroupConfig:
    answers, _ = calls.describe_group(group, _ASK_S)
    found = GroupConfig()
    found.CopyFrom(answers[min(answers)].config)  # without the members, which it would keep
    return found
