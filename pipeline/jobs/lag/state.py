"""What the stream remembers between two samples, in Spark's state store: where each queue was.

The key is a group at a broker, whose queues are read together, so that a state is read and written once for hundreds of
queues. It holds the queues of the last sample that the broker answered; one that is not among them any more is
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from ...columns.schema import as_struct
from .columns import MEASURED_COLUMNS, SAMPLE_COLUMNS, Sample, Seen, age_ms, rates

KEY = ("consumerGroup", "brokerName")
STATE = "time bigint, topics array<string>, queueIds array<int>, ends array<bigint>, committed array<bigint>"


def measured(samples: Any) -> Any:
    """The rows of a stream of :data:`SAMPLE_COLUMNS` with what follows from those before, as ``MEASURED_COLUMNS``."""
    return samples.groupBy(*KEY).transformWithState(
        statefulProcessor=Measuring(),
        outputStructType=as_struct(MEASURED_COLUMNS),
        outputMode="Append",
        timeMode="None",
    )


class Measuring(StatefulProcessor):
    """Lives in a Python worker of Spark, for one task."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._queues = handle.getValueState("queues", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """One sample of a group at a broker."""
        before = self._before()
        seen: dict[tuple[str, int], Seen] = {}
        for row in rows:
            interval, *values = (row[name] for name in SAMPLE_COLUMNS)
            sample = Sample(*values)
            place = sample.topic, sample.queue_id
            seen[place] = Seen(sample.time, sample.end, sample.committed)
            yield Row(**measure(interval, sample, before.get(place)))
        self._queues.update(
            (
                max(each.time for each in seen.values()),
                [topic for topic, _ in seen],
                [number for _, number in seen],
                [each.end for each in seen.values()],
                [each.committed for each in seen.values()],
            )
        )

    def close(self) -> None:
        """Nothing is held."""

    def _before(self) -> dict[tuple[str, int], Seen]:
        state = self._queues.get()
        if state is None:
            return {}
        time, topics, numbers, ends, committed = state
        return {
            (topic, number): Seen(time, end, own)
            for topic, number, end, own in zip(topics, numbers, ends, committed, strict=True)
        }


def measure(interval: int, sample: Sample, before: Seen | None) -> dict[str, Any]:
    """The row of :data:`MEASURED_COLUMNS`."""
    moved = rates(before, sample.time, sample.end, sample.committed)
    values = (interval, *sample, sample.lag, *moved, age_ms(sample.time, sample.oldest_unread))
    return dict(zip(MEASURED_COLUMNS, values, strict=True))


assert len(Sample._fields) + 1 == len(SAMPLE_COLUMNS)
