"""Where a consumer begins in a queue, and how its progress is collected."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..message import MessageQueue
from .consumer_config import CONSUME_FROM_FIRST, CONSUME_FROM_LAST
from .local_queue import Buffers, LocalQueue, Standing

log = logging.getLogger(__name__)


def starting_offset(
    queue: MessageQueue,
    *,
    committed: int,
    min_offset: int,
    max_offset: int,
    consume_from: str | int,
    search: Callable[[int], int],
) -> int:
    """The committed offset, or what ``consume_from`` means for a queue that nobody of the group has consumed.

    A committed offset below the queue's first message is moved up to it, with a warning. One above the end stays: a
    broker that has just started, or a slave, may see less than was consumed; the fetch finds out whether it is too
    high, and moves it then. ``search(timestamp_ms)`` asks the broker where a time begins.
    """
    if committed >= 0:
        wanted = committed
    elif consume_from == CONSUME_FROM_FIRST:
        wanted = min_offset
    elif consume_from == CONSUME_FROM_LAST:
        wanted = max_offset
    else:
        wanted = search(int(consume_from))
    if wanted < min_offset:
        log.warning(
            "offset was below the queue's first message, some are gone queue=%s offset=%d first=%d",
            queue,
            wanted,
            min_offset,
        )
        return min_offset
    return wanted


def uncommitted(buffers: Buffers, broker_name: str | None = None) -> dict[LocalQueue, int]:
    """Finished and not committed: queue and offset, of one broker group or of all. Takes the buffers' lock."""
    with buffers.lock:
        found = {}
        for local in buffers.queues.values():
            if broker_name is not None and local.queue.broker_name != broker_name:
                continue
            if local.standing in (Standing.OWNED, Standing.REVOKED):
                offset = local.to_commit()
                if offset is not None:
                    found[local] = offset
        return found
