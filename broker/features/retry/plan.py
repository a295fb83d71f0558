"""What becomes of messages that are sent back. Decisions only: nothing is stored here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.retry_pb2 import SendBackRequest

from ...core.tables.groups import Group

Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]

COUNT_MAX: Final = 4096
SEQUENCE_MAX: Final = (1 << 62) - 1
TIMES_MAX: Final = (1 << 31) - 2
DEAD: Final = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that makes sense."""

    offsets: Longs
    levels: Ints
    times: Ints

    @classmethod
    def of(cls, request: SendBackRequest) -> Asked:
        """The numbers of ``request``. Raises InvalidArgument: says which are wrong, and what is allowed."""
        where = f"send-back of group {request.group}, topic {request.topic}, queue {request.queue_id}"
        count = len(request.offsets)
        if not 1 <= count <= COUNT_MAX:
            raise InvalidArgument(f"{where}: {count} offsets: 1..{COUNT_MAX} are allowed")
        for name, given in (("delay_levels", request.delay_levels), ("reconsume_times", request.reconsume_times)):
            if len(given) not in (0, count):
                raise InvalidArgument(f"{where}: {len(given)} {name} for {count} offsets: give one each, or none")
        if not request.producer_id or not 1 <= request.sequence <= SEQUENCE_MAX:
            raise InvalidArgument(f"{where}: it needs a producer_id, and a sequence of 1..{SEQUENCE_MAX}")
        offsets = np.array(request.offsets, np.int64)
        if offsets[0] < 0 or (np.diff(offsets) <= 0).any() or request.queue_id < 0:
            raise InvalidArgument(f"{where}: offsets must ascend, and neither they nor the queue may be negative")
        times = np.array(request.reconsume_times or [0] * count, np.int32)
        if (times < 0).any() or (times > TIMES_MAX).any():
            raise InvalidArgument(f"{where}: reconsume_times must be 0..{TIMES_MAX}")
        return cls(offsets, np.array(request.delay_levels or [0] * count, np.int32), times)


def allowed_times(group: Group, request: SendBackRequest) -> int:
    """How often a message comes again before it is a dead letter: what the consumer says, else the group."""
    if group.retry_queues <= 0:
        return 0  # there is no retry topic: RocketMQ drops the message then
    wanted = request.max_reconsume_times if request.HasField("max_reconsume_times") else group.retry_max_times
    return min(max(wanted, 0), TIMES_MAX)


def is_dead(levels: Ints, times: Ints, fits: Any, allowed: int) -> Any:
    """Which of the messages do not come again. ``fits``: there is room for what must be said in those that do."""
    return (levels < 0) | (times >= allowed) | ~fits


def due_times(levels: Ints, times: Ints, group: Group, levels_ms: Sequence[int], now_ms: int) -> Longs:
    """When each comes again: by its delay level, or by how often it was tried."""
    policy = np.array(group.retry_policy.table(levels_ms), np.int64)
    by_level = np.array(levels_ms, np.int64)
    waits = np.where(
        levels > 0,
        by_level[np.clip(levels - 1, 0, len(by_level) - 1)],
        policy[np.minimum(times, len(policy) - 1)],
    )
    return now_ms + waits
