"""What is known of a group in a queue at a moment, and what follows from two such samples.

A row of ``lake/lag/`` stands for a group, a queue and an interval, at its end. Nothing is null but as it says here.

| Column | Type | Meaning |
|---|---|---|
| interval | timestamp | when the sample was due: the same in all its rows, and the day of their directory |
| time | timestamp | when the queue's broker was asked |
| consumerGroup, topic, brokerName, queueId | string, int | |
| minOffset, endOffset | long | what can be read: half open, up to the confirm offset |
| committedOffset | long | the next offset that the group wants; null if it never committed |
| lag | long | ``endOffset - max(committedOffset, minOffset)``: without a commit all there is, as in ``group show`` |
| intervalMs | long | since the queue's sample before, by ``time``; null in the first |
| producedPerSecond | double | over ``intervalMs``; null in the first, and where the end went back |
| consumedPerSecond | double | the same of the committed offset; null without one at either end, too |
| oldestUnreadTimestamp | timestamp | when the first unread message was stored; null without one, or at no such time |
| oldestUnreadAgeMs | long | from then to ``time`` |

An end goes back when a topic is made anew, and for a moment when a slave that is behind answers for its master.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...columns.schema import TIME_MS_MAX, columns
from ...spark.arrow_types import arrow_schema

LAG_COLUMNS = columns(
    "interval timestamp, time timestamp, consumerGroup string, topic string, brokerName string, queueId int, "
    "minOffset bigint, endOffset bigint, committedOffset bigint, lag bigint, intervalMs bigint, "
    "producedPerSecond double, consumedPerSecond double, oldestUnreadTimestamp timestamp, oldestUnreadAgeMs bigint"
)
LAG_SCHEMA = arrow_schema(LAG_COLUMNS)


class Sample(NamedTuple):
    """A group in a queue at a moment, times in ms; None where there is no commit, or nothing unread."""

    time: int
    group: str
    topic: str
    broker: str
    queue_id: int
    minimum: int
    end: int
    committed: int | None
    oldest_unread: int | None = None

    @property
    def next_offset(self) -> int:
        """The first message that is unread, or the end."""
        return self.minimum if self.committed is None else max(self.committed, self.minimum)

    @property
    def lag(self) -> int:
        """Messages that are unread."""
        return max(0, self.end - self.next_offset)


class Rates(NamedTuple):
    """What happened between two samples; None where they do not tell."""

    interval_ms: int | None = None
    produced: float | None = None
    consumed: float | None = None


def rates(before: Sample | None, now: Sample) -> Rates:
    """Messages per second since ``before``: over the time that has passed, however long a job was stopped."""
    if before is None or now.time <= before.time:
        return Rates()
    passed_ms = now.time - before.time
    produced = now.end - before.end
    consumed = -1 if now.committed is None or before.committed is None else now.committed - before.committed
    return Rates(
        passed_ms,
        1000 * produced / passed_ms if produced >= 0 else None,
        1000 * consumed / passed_ms if consumed >= 0 else None,
    )


def age_ms(time: int, stored: int | None) -> int | None:
    """How old a message is; clocks of two machines may differ, and nothing is younger than now."""
    return None if stored is None else max(0, time - stored)


def row_of(interval_ms: int, sample: Sample, before: Sample | None) -> dict[str, Any]:
    """The row of :data:`LAG_COLUMNS`, times in µs; ``before``: the sample of the queue that came before."""
    stored = sample.oldest_unread
    values = (
        *(1000 * interval_ms, 1000 * sample.time, sample.group, sample.topic, sample.broker, sample.queue_id),
        *(sample.minimum, sample.end, sample.committed, sample.lag, *rates(before, sample)),
        *(1000 * stored if stored is not None and stored <= TIME_MS_MAX else None, age_ms(sample.time, stored)),
    )
    return dict(zip(LAG_COLUMNS, values, strict=True))
