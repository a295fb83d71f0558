"""How far streams are behind, by topic: what Spark's own progress has no place for, as a Python source has no metrics.

Both ends of each queue are in the offsets of a progress, so whoever has a progress can tell, also later and elsewhere.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from .progress import ends_in

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A topic as a query's batch has left it. Offsets are sums over its queues.

    ``end`` is what was known when the batch was planned; queues of broker groups that are away count with what was
    known of them. Rates are per second since the batch before began, and None in a first one and where a queue's
    offset went back.
    """

    end: int
    committed: int
    behind: int
    produced_per_second: float | None
    consumed_per_second: float | None


def behind(query: Any) -> dict[str, int]:
    """How many messages of each topic a running query had not read when its last batch ended, by topic."""
    progress = query.lastProgress
    return {topic: each.behind for topic, each in lags(progress).items()} if progress is not None else {}


def lag(query: Any) -> dict[str, TopicLag]:
    """Where a query is in each of its topics, and how fast both go, by its last two batches."""
    recent = query.recentProgress[-2:]
    return lags(recent[-1], recent[0] if len(recent) > 1 else None) if recent else {}


def lags(progress: Any, before: Any = None) -> dict[str, TopicLag]:
    """The same of one ``StreamingQueryProgress``; ``before``: an earlier one of the same query, for the rates."""
    now, then = ends_in(progress), ends_in(before) if before is not None else {}
    seconds = _seconds(before, progress) if before is not None else 0.0
    found: dict[str, TopicLag] = {}
    for topic in sorted({queue.topic for queue in now}):
        of = {queue: each for queue, each in now.items() if queue.topic == topic}
        both = [(each, then[queue]) for queue, each in of.items() if queue in then]
        found[topic] = TopicLag(
            end=sum(max(each.end, each.latest) for each in of.values()),
            committed=sum(each.end for each in of.values()),
            behind=sum(each.lag for each in of.values()),
            produced_per_second=_rate([(each.latest, old.latest) for each, old in both], seconds),
            consumed_per_second=_rate([(each.end, old.end) for each, old in both], seconds),
        )
    return found


class LagLog(StreamingQueryListener):
    """A line in the log for each topic, beside each progress of a session's streams."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}  # run id -> its newest progress; Spark calls from one thread

    def onQueryStarted(self, event: Any) -> None:
        """Nothing yet."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing more of it comes."""
        self._last.pop(str(event.runId), None)

    def onQueryProgress(self, event: Any) -> None:
        """A batch is finished."""
        progress = event.progress
        run = str(progress.runId)
        for topic, each in lags(progress, self._last.get(run)).items():
            log.info(
                "batch finished query=%s batch=%d topic=%s end=%d committed=%d behind=%d "
                "produced_per_second=%s consumed_per_second=%s",
                *(progress.name or progress.id, progress.batchId, topic, each.end, each.committed, each.behind),
                *(_told(each.produced_per_second), _told(each.consumed_per_second)),
            )
        self._last[run] = progress


def _seconds(before: Any, now: Any) -> float:
    """Between the beginnings of two batches."""
    return (datetime.fromisoformat(now.timestamp) - datetime.fromisoformat(before.timestamp)).total_seconds()


def _rate(pairs: list[tuple[int, int]], seconds: float) -> float | None:
    if seconds <= 0 or not pairs or any(new < old for new, old in pairs):
        return None
    return sum(new - old for new, old in pairs) / seconds


def _told(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.1f}"
