"""Streams: which offsets a micro-batch gets, decided on the driver.

Spark's own words for this are contradictory in places; what the methods promise here is what keeps each message in
exactly one batch over crashes (see :mod:`.offsets`). A broker that changes its master, or a nameserver that is gone for
a while, delays a batch and does not end the query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.proto.errors import DataLoss, PenstockError, TopicNotFound

from ..offsets import (
    Created,
    Document,
    Epochs,
    Queue,
    Slice,
    at_least,
    backlog_of,
    begin_of,
    created_of,
    epochs_of,
    limited,
    queues_of,
    slices,
    stream_offset,
)
from ..options import SourceOptions
from ..waiting import TURN_S, WITHOUT_END, Reminder, patiently
from .planning import share
from .source import TopicPartition, planned, read_partition

if TYPE_CHECKING:
    from ..cluster import Cluster, Positions

log = logging.getLogger(__name__)

ASKED_S = 3.0
"""For a call that may find nobody."""
SHRUNK_S = 10.0
"""A queue whose end lies below the query's place may still be dispatching after a restart; so long it is waited for."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream's reader: lives in the driver's planner, and as a copy in every worker.

    Spark's ``commit`` comes a batch late, and never for the last one: :mod:`.progress` reports instead.
    """

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._initial: Document | None = None
        self._target: dict[Queue, int] | None = None
        self._is_checked = False  # whether the queues still hold what follows the query's place, for a target
        self._seen: dict[Queue, int] = {}
        self._mean_bytes: dict[Queue, int] = {}
        self._minima: dict[Queue, int] = {}
        self._created: dict[tuple[str, str], int] = {}
        self._epochs: dict[tuple[str, str], int] = {}
        self._restarts: dict[Queue, int] = {}  # where to go on with queues that are not what they were
        self._batch_at = time.monotonic()
        self._gone: set[tuple[str, str]] = set()  # topics at broker groups that are known to be gone
        self._unreadable: set[Queue] = set()  # queues that their topics have no more, and of which that was told
        self._away: set[tuple[str, str]] = set()  # the same that do not answer now
        self._reminder = Reminder("the stream's next batch")

    def initialOffset(self) -> dict[str, Any]:
        """Where the stream begins: resolved once, and told again in the first end, which Spark stores."""
        if self._initial is None:
            from .starting import check_filter, starting_offsets

            options, view = self._options, self._view()
            is_pattern = bool(options.pattern)  # of topics that may come later
            begin, positions = patiently(
                lambda turn_s: starting_offsets(view, options, timeout_s=turn_s, tolerates_missing=is_pattern),
                options.timeout_s,
                "the stream's beginning",
            )
            if positions:
                check_filter(view, options, positions)
            self._initial = stream_offset(
                begin, created=positions.created, epochs=positions.epochs, first=True, group=options.group
            )
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options allow in one batch."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: never below ``start``, and ``start`` itself when there is nothing to do.

        Broker groups that are away have nothing to do, also where that are all: the next trigger asks again.
        """
        begin, created, epochs = queues_of(start), created_of(start), epochs_of(start)
        who, timeout_s = "the stream's next batch", self._options.timeout_s
        try:
            target = patiently(
                lambda _: self._reached(begin, created, epochs), 0.0 if timeout_s == WITHOUT_END else timeout_s, who
            )
        except PenstockError as error:
            if not error.retryable or timeout_s < WITHOUT_END:
                raise
            self._reminder.tell(error)
            return start
        self._reminder.restart()
        # New queues are read from their first message on; what is lost is left out, if that is allowed.
        moved = {queue: low for queue, low in self._minima.items() if queue in target and queue not in begin}
        known = begin | moved | self._restarts
        end = self._limited(known, at_least(known, target), limit)
        # A topic that was made anew may have grown to the very place where the query is.
        if (end == begin and not self._restarts) or not self._is_enough(known, end):
            return start
        self._batch_at = time.monotonic()
        init = known if start.get("first") else moved | self._restarts
        tasks = len(planned(slices(known, end), self._mean_bytes, self._options))
        return stream_offset(
            end,
            created=created | self._created,
            epochs=epochs | self._epochs,
            init=init or None,
            group=self._options.group,
            tasks=tasks,
        )

    def prepareForTriggerAvailableNow(self) -> None:
        """Read to what is there now, and no further."""
        target = patiently(
            lambda _: self._positions({}, {}, {}), self._options.timeout_s, "the stream, for what is there now,"
        )
        self._target, self._is_checked = target, False

    def _reached(self, begin: Mapping[Queue, int], created: Created, epochs: Epochs) -> dict[Queue, int]:
        """How far the queues have come, or the fixed target: made before Spark told where the query is, so that losses
        show only now.
        """
        if self._target is None:
            return self._positions(begin, created, epochs, passes_over_silent=True)
        if self._is_checked:
            self._restarts = {}  # the batch before began there
        else:
            self._positions(begin, created, epochs)
            self._is_checked = True
        return self._target

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The last ends that were seen; ``away``: broker groups of which nobody answers, by topic."""
        if not self._seen:
            return None
        told = stream_offset(self._seen)
        for topic, broker in sorted(self._away):
            told.setdefault("away", {}).setdefault(topic, []).append(broker)
        return told

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch: the same for the same two offsets, whenever and whoever is asked."""
        wanted = self._of_the_same_topics(slices(begin_of(start, end), queues_of(end)), created_of(end))
        return [TopicPartition(group) for group in share(wanted, end.get("tasks", 1))]

    def read(self, partition: Any) -> Iterator[Any]:
        """The messages of a partition as record batches."""
        yield from read_partition(self._options, self._schema, partition)

    def __getstate__(self) -> Mapping[str, Any]:
        """Without what only the driver knows."""
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["_options"], state["_schema"])  # type: ignore[misc]  # the same object, filled anew

    def _view(self) -> Cluster:
        from ..cluster import cluster

        return cluster(self._options.name_server, self._options.security)

    def _positions(
        self, begin: Mapping[Queue, int], created: Created, epochs: Epochs, *, passes_over_silent: bool = False
    ) -> dict[Queue, int]:
        from penstock.client.cluster import again

        options, view = self._options, self._view()
        timeout_s = min(options.timeout_s, TURN_S)
        deadline = time.monotonic() + SHRUNK_S
        tolerates = bool(options.pattern) or not options.fail_on_data_loss
        held = {queue[:2] for queue in begin}
        while True:
            found = again(
                lambda: view.positions(
                    options,
                    timeout_s=min(timeout_s, ASKED_S) if passes_over_silent else timeout_s,
                    tolerates_missing=tolerates,
                    passes_over_silent=passes_over_silent,
                    held=held,
                    epochs=epochs,
                ),
                timeout_s,
            )
            kept = {
                queue: min(found.cut.get(queue, found[queue].maximum), found[queue].maximum) for queue in found.certain
            }
            shrunk = sorted(queue for queue, end in kept.items() if end < begin.get(queue, 0))
            if not shrunk or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._check_gone(begin, found, timeout_s)
        self._check_removed(begin, created, found)
        self._note_away(found)
        self._created, self._epochs = found.created, found.epochs
        same = {place for place, created_ms in found.created.items() if created.get(place) == created_ms}
        anew = (found.created.keys() & created.keys()) - same
        shrunk += [queue for queue in found if queue[:2] in anew and queue in begin and queue not in shrunk]
        self._minima = {queue: held.minimum for queue, held in found.items()}
        self._mean_bytes = {queue: held.mean_bytes for queue, held in found.items()}
        self._seen = {queue: held.maximum for queue, held in found.items()}
        past = [
            queue for queue, low in sorted(self._minima.items()) if begin.get(queue, low) < low and queue not in shrunk
        ]
        cut = {queue: max(kept[queue], self._minima[queue]) for queue in shrunk if queue[:2] in same}
        self._check(begin, shrunk, past, anew, cut)
        self._restarts = {queue: self._minima[queue] for queue in (*shrunk, *past)} | cut
        return dict(self._seen)

    def _note_away(self, found: Positions) -> None:
        """Say whose messages wait, when that changes."""
        away = set(found.absent)
        for topic, broker in sorted(away - self._away):
            log.warning("topic %s: nobody of %s answers, its messages wait and others go on", topic, broker)
        for topic, broker in sorted(self._away - away):
            log.warning("topic %s: %s answers again", topic, broker)
        self._away = away

    def _of_the_same_topics(self, wanted: list[Slice], planned_with: Created) -> list[Slice]:
        """The slices without those of topics that were made anew, or deleted, since the batch was planned.

        Raises DataLoss: there is one, and ``failOnDataLoss``.
        """
        left, view = [], self._view()
        for place in {each.queue[:2]: None for each in wanted}:
            topic, broker = place
            due = planned_with.get(place)
            problem = ""
            if due is not None and self._created.get(place) != due:
                try:
                    found = patiently(
                        lambda turn_s, topic=topic, broker=broker: view.topic_positions(broker, topic, turn_s),  # type: ignore[misc]
                        self._options.timeout_s,
                        f"the stream's batch with messages of topic {topic} at {broker}",
                    )
                except TopicNotFound:
                    problem = "is gone"
                else:
                    if found.is_master and found.created_ms not in (0, due):
                        problem = "was made anew"
            if problem:
                self._tell(f"topic {topic} {problem} at {broker} since the batch was planned: its messages are lost")
            else:
                left += [each for each in wanted if each.queue[:2] == place]
        return left

    def _check_gone(self, begin: Mapping[Queue, int], found: Positions, timeout_s: float) -> None:
        """That the topics of the query's queues are still there; a broker group that does not answer is not asked on.

        One that is known to be down is not asked at all.
        Raises DataLoss: one is not, and ``failOnDataLoss``.
        """
        missing = {queue[:2] for queue in begin} - {queue[:2] for queue in found}
        for place in sorted(missing - self._gone - found.absent):
            topic, broker = place
            try:
                self._view().topic_positions(broker, topic, min(timeout_s, ASKED_S))
            except TopicNotFound:
                queues = [str(queue) for queue in sorted(begin) if queue[:2] == place]
                self._tell(
                    f"topic {topic} is gone at {broker}: what the query has not read of {', '.join(queues)} is lost"
                )
                self._gone.add(place)
            except PenstockError as error:
                log.info("topic not asked for now topic=%s broker=%s error=%s", topic, broker, error)

    def _check_removed(self, begin: Mapping[Queue, int], created: Created, found: Positions) -> None:
        """That no topic got fewer queues before these were read. They are read on if it gets them again.

        Raises DataLoss: one did, and ``failOnDataLoss``.
        """
        for queue in sorted(begin.keys() & found.removed.keys() - self._unreadable):
            now = found.created.get(queue[:2])
            problem = found.unreadable(queue, begin[queue])
            if problem and created.get(queue[:2], now) == now:  # else it is of a topic that was made anew
                self._tell(problem)
                self._unreadable.add(queue)

    def _tell(self, problem: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{problem}; failOnDataLoss=false goes on with what is left")
        log.warning("%s", problem)

    def _check(
        self,
        begin: Mapping[Queue, int],
        shrunk: list[Queue],
        past: list[Queue],
        anew: set[tuple[str, str]],
        cut: Mapping[Queue, int],
    ) -> None:
        for queue in shrunk:
            if queue in cut:
                why = (
                    f"and its log has lost what it had from {cut[queue]} on: a failover went to a slave that was behind"
                )
            else:
                why = f"the queue ends at {self._seen[queue]}: its topic was made anew"
                why += "" if queue[:2] in anew else ", or its log lost its end"
            self._tell(f"queue {queue}: the query is at {begin[queue]}, {why}")
        for queue in past:
            gone = (
                f"the queue begins at {self._minima[queue]} now: {self._minima[queue] - begin[queue]} messages are gone"
            )
            self._tell(f"queue {queue}: the query is at {begin[queue]}, {gone}")

    def _limited(self, begin: Mapping[Queue, int], target: Mapping[Queue, int], limit: ReadLimit) -> dict[Queue, int]:
        if isinstance(limit, ReadMaxRows):
            return limited(begin, target, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return limited(begin, target, limit.max_bytes, self._mean_bytes)
        return dict(target)

    def _is_enough(self, begin: Mapping[Queue, int], end: Mapping[Queue, int]) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or backlog_of(begin, end) >= least:
            return True
        return time.monotonic() - self._batch_at >= self._options.max_trigger_delay_ms / 1000
