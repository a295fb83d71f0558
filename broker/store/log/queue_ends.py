"""Where the queues of a topic end, as a batch is placed behind them."""

from __future__ import annotations

import numpy as np

from penstock.formats.record.kernels import PlaceStatus
from penstock.proto.errors import CorruptBatch, Forbidden, MessageTooLarge

from ..disk import Bytes
from ..queues.kernels import Longs

_PROPERTIES_BYTES_MAX = 32767
_TOO_LARGE = (PlaceStatus.BODY_TOO_LARGE, PlaceStatus.PROPERTIES_TOO_LARGE)


class QueueEnds:
    """Where the queues of one topic go on; ``next_offsets`` is indexed by queue id.

    ``queues``: those below it take records, those that exist beside them were removed.
    """

    def __init__(self, topic: str, next_offsets: Longs) -> None:
        self.name: Bytes = np.frombuffer(topic.encode(), np.uint8)
        self.next_offsets = next_offsets
        self.queues = 0
        self.seen: Longs = np.zeros(len(next_offsets), np.int64)

    def reserve(self, queues: int) -> None:
        """Have that many queues; new ones begin at 0."""
        self.queues = queues
        missing = queues - len(self.next_offsets)
        if missing > 0:
            self.next_offsets = np.concatenate((self.next_offsets, np.zeros(missing, np.int64)))
            self.seen = np.zeros(queues, np.int64)

    def refusal(
        self, status: PlaceStatus, index: int, count: int | None, body_bytes_max: int
    ) -> CorruptBatch | Forbidden | MessageTooLarge:
        """The error of a batch whose record ``index`` cannot be placed; ``count``: as its header says."""
        topic = bytes(self.name).decode()
        reason = status.name.lower().replace("_", " ")
        if status in _TOO_LARGE:
            limit = body_bytes_max if status == PlaceStatus.BODY_TOO_LARGE else _PROPERTIES_BYTES_MAX
            return MessageTooLarge(f"topic {topic}, record {index}: {reason}, at most {limit} bytes", index=index)
        if status == PlaceStatus.OTHER_COUNT:
            return CorruptBatch(
                f"topic {topic}: the batch's header says {count} records, there are "
                f"{'more' if index == count else index} whole ones",
                index=index,
            )
        if status == PlaceStatus.MISPLACED_MARK:
            reason = "carries a producer mark, which only a batch's first may"
        if status == PlaceStatus.NUL_IN_PROPERTIES:
            reason = "properties may not contain the character 0x00"
        if status == PlaceStatus.BAD_QUEUE:
            return queue_gone(topic, index, self.queues)
        return CorruptBatch(f"topic {topic}, record {index} of the batch: {reason}", index=index)


def queue_gone(topic: str, index: int, queues: int) -> Forbidden:
    """The error of a batch whose record ``index`` is for a queue that its topic, with so many, does not have."""
    return Forbidden(
        f"topic {topic}, record {index} of the batch: bad queue, the topic has {queues}: look up its route again",
        queues=queues,
    )
