"""A stream's progress as committed offsets of a consumer group, and as numbers for whoever asks.

Spark tells a source of a finished batch one batch late, and never of the last one; a query listener hears of each. So
``attach(spark, name_server)`` is how ``penstock group show`` and lag alarms see a stream whose option ``group`` is set.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.proto.errors import ConfigError, OutcomeUnknown, PenstockError
from penstock.runtime.security.credentials import SecurityFiles

from ..offsets import Epochs, Queue, epochs_of, passed_over, queues_of

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 10.0
EVENTS_TIMEOUT_S = 60.0
RATES_MAX = 1000


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Where a query is in one queue; ``lag``: messages behind, as far as is known."""

    end: int
    latest: int

    @property
    def lag(self) -> int:
        """Messages that are there and not read yet."""
        return max(0, self.latest - self.end)


@dataclass(slots=True)
class Run:
    """What a run of a query did. ``rates``: number and messages per second of its newest batches with messages."""

    messages: int = 0
    batches: int = 0
    last: Any = None  # the newest progress with messages
    rates: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RATES_MAX))
    ended: threading.Event = field(default_factory=threading.Event)


class Progress(StreamingQueryListener):
    """Listens to the queries of a session. ``queues(query id)`` and ``lost(query id)`` may be asked from any thread."""

    def __init__(
        self, name_server: str, groups: Mapping[str, str] | None = None, security: SecurityFiles | None = None
    ) -> None:
        """``groups``: query name or id -> group, for queries whose source does not name one."""
        self._name_server = name_server
        self._security = security
        self._groups = dict(groups or {})
        self._lock = threading.Lock()
        self._queues: dict[str, dict[Queue, QueueProgress]] = {}
        self._lost: dict[str, dict[Queue, int]] = {}
        self._runs: defaultdict[str, Run] = defaultdict(Run)

    def queues(self, query_id: str) -> dict[Queue, QueueProgress]:
        """Where the query is, after its last finished batch."""
        with self._lock:
            return dict(self._queues.get(str(query_id), {}))

    def lost(self, query_id: str) -> dict[Queue, int]:
        """How many messages the query has passed over since this listens, with ``failOnDataLoss=false``.

        A queue whose topic was made anew is named with what else it lost, since nobody knows how much that was.
        """
        with self._lock:
            return dict(self._lost.get(str(query_id), {}))

    def run(self, run_id: str) -> Run:
        """What a run has done that has ended, of which the last events may still be under way.

        A query itself remembers its newest hundred batches.
        Raises OutcomeUnknown: Spark does not tell its end.
        """
        with self._lock:
            run = self._runs[str(run_id)]
        if not run.ended.wait(EVENTS_TIMEOUT_S):
            raise OutcomeUnknown(
                f"Spark has not told within {EVENTS_TIMEOUT_S:g} s that the query {run_id} ended: its work is done, "
                "but how much that was is not known"
            )
        return run

    def onQueryStarted(self, event: Any) -> None:
        """Nothing yet."""

    def onQueryTerminated(self, event: Any) -> None:
        """The query has ended; its progress stays readable."""
        with self._lock:
            self._runs[str(event.runId)].ended.set()

    def onQueryProgress(self, event: Any) -> None:
        """A batch is finished: note its end, commit it where a group is named."""
        progress = event.progress
        found = ends_in(progress)
        groups: dict[str, tuple[dict[Queue, int], dict[tuple[str, str], int]]] = {}
        lost: dict[Queue, int] = {}
        for source in progress.sources:
            end = _offset(source.endOffset)
            if end is None:
                continue
            for queue, count in passed_over(_offset(source.startOffset) or {"first": True}, end).items():
                lost[queue] = max(count, lost.get(queue, 0))
            group = end.get("group") or self._groups.get(progress.name or "") or self._groups.get(str(progress.id))
            if group:
                ends, epochs = groups.setdefault(str(group), ({}, {}))
                for queue, offset in queues_of(end).items():
                    ends[queue] = min(offset, ends.get(queue, offset))
                for place, epoch in epochs_of(end).items():
                    epochs[place] = min(epoch, epochs.get(place, epoch))
        with self._lock:
            self._queues[str(progress.id)] = found
            known = self._lost.setdefault(str(progress.id), {})
            for queue, count in lost.items():
                known[queue] = known.get(queue, 0) + count
            if progress.numInputRows:
                run = self._runs[str(progress.runId)]
                run.messages += progress.numInputRows
                run.batches += 1
                run.last = progress
                run.rates.append((progress.batchId, round(progress.processedRowsPerSecond or 0.0, 1)))
        for group, (ends, epochs) in groups.items():
            self._commit(group, ends, epochs)

    def _commit(self, group: str, ends: Mapping[Queue, int], epochs: Epochs) -> None:
        from ..cluster import cluster

        try:
            refused = cluster(self._name_server, self._security).commit(group, ends, COMMIT_TIMEOUT_S, epochs)
        except PenstockError as error:  # the next batch commits more than this one
            log.warning("progress not committed group=%s error=%s", group, error)
            return
        if refused:
            text = "group is further already, or the log lost its end group=%s queue=%s queues=%d"
            log.info(text, group, refused[0], len(refused))


def ends_of(source: Any) -> dict[Queue, QueueProgress]:
    """Where a query is in the queues of one of its sources (an element of a progress' ``sources``)."""
    end = _offset(source.endOffset)
    if end is None:
        return {}
    latest = queues_of(_offset(source.latestOffset) or end)
    return {queue: QueueProgress(at, latest.get(queue, at)) for queue, at in queues_of(end).items()}


def ends_in(progress: Any) -> dict[Queue, QueueProgress]:
    """Where a query is in its queues: where several of its sources read one, as in a self-join, the last of them."""
    found: dict[Queue, QueueProgress] = {}
    for source in progress.sources:
        for queue, each in ends_of(source).items():
            other = found.get(queue, each)
            found[queue] = QueueProgress(min(each.end, other.end), max(each.latest, other.latest))
    return found


def attach(
    spark: Any, name_server: str, groups: Mapping[str, str] | None = None, security: SecurityFiles | None = None
) -> Progress:
    """Report the progress of every stream of ``spark`` that reads topics of this cluster, from now on.

    ``security``: the driver's files; by default what its environment names.
    """
    listener = Progress(name_server, groups, security)
    spark.streams.addListener(listener)
    return listener


def _offset(text: str | None) -> dict[str, Any] | None:
    """One of our offsets, None for another source's."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(found, dict) or "q" not in found:
        return None
    try:
        queues_of(found)
    except ConfigError:
        return None
    return found
