"""How far consumer groups are behind, over time: a row per group, queue and interval in the lake's folder lag.

The job looks at the cluster at every interval and appends what it sees, with rates since the look before and the age
of the oldest unread message (columns: :mod:`penstock.pipeline.jobs.lag.columns`). What it needs to go on is in the
checkpoint: a job that is stopped, or killed, and started again has no row twice, and its first rates are over the real
time since its last look. Without ``follow`` it ends after so many intervals, one by default, as for a timer's unit.

A look is a few calls to each broker, so the job needs no Spark; what it writes is read with it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError

from ...options import setting
from ..framework.reading import claim_checkpoint, ended_by_signals, same_servers
from ..framework.report import Report, Table
from ..framework.topics import require_topic

if TYPE_CHECKING:
    from ...topics.cluster import Cluster
    from .history import History, Place

NEEDS_SPARK = False
INTERVAL_S_MIN = 0.1
SAMPLES_SHOWN_MAX = 2000
"""The report shows the last ones; the lake has all."""
QUEUES_SHOWN_MAX = 50
QUEUES_PLOTTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Whom to watch, and how often."""

    namesrv: str = setting("nameservers of the cluster")
    groups: tuple[str, ...] = setting("consumer groups, separated by commas; they must exist")
    lake: str = setting("the lake's directory or URI; several such jobs may write to one")
    checkpoint: str = setting("directory or URI that keeps what was seen; one for each such job")
    topics: tuple[str, ...] = setting("only these topics; all that a group has committed in or subscribes to", ())
    interval_s: float = setting("seconds from one look to the next", 10.0)
    intervals: int | None = setting("how many looks, the last of which ends the job; 1 by default", None)
    follow: bool = setting("go on until SIGTERM or SIGINT ends the job, which then reports", False)


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    if not config.groups:
        raise ConfigError("lag: groups is empty: name one, as --groups orders")
    if not config.interval_s >= INTERVAL_S_MIN:
        raise ConfigError(f"lag: interval_s is {config.interval_s}: at least {INTERVAL_S_MIN}")
    if config.intervals is not None and config.follow:
        raise ConfigError(f"lag: intervals is {config.intervals}, and follow has no end: give one of them")
    if config.intervals is not None and config.intervals < 1:
        raise ConfigError(f"lag: intervals is {config.intervals}: at least 1")


def run(_: object, config: Config) -> Report:
    """Watch for so long, or follow; no session is needed.

    Raises GroupNotFound, TopicNotFound: one that is named does not exist; nothing was started.
    Raises ConfigError: an option is wrong, or the checkpoint is of another cluster or job, or damaged.
    Raises StorageError: lake or checkpoint cannot be read or written; what was seen before stays.
    """
    from ...lake.lake import Lake
    from ...topics.cluster import cluster
    from .history import History
    from .sampling import require_groups

    check(config)
    view = cluster(config.namesrv)
    silent = require_groups(view, config.groups)
    for topic in config.topics:
        require_topic(config.namesrv, topic)
    claim_checkpoint("lag", config.checkpoint, {"namesrv": same_servers(config.namesrv)})
    report = Report("lag", asdict(config))
    history = History.opened(Lake(config.lake), config.checkpoint)
    with ended_by_signals() if config.follow else contextlib.nullcontext(threading.Event()) as ended:
        taken = _watch(view, config, history, ended)
    report.finish()
    _tell(report, config, view, history, taken, silent)
    return report


@dataclass(slots=True)
class _Taken:
    """What a run has added to the lake, as far as the report shows it."""

    samples: int = 0
    rows: int = 0
    last: list[dict[str, Any]] = field(default_factory=list)  # the rows of the last sample
    sums: deque[tuple[int, dict[Place, int]]] = field(default_factory=lambda: deque(maxlen=SAMPLES_SHOWN_MAX))
    """When a sample was due, and its lag by place."""

    def add(self, at_ms: int, rows: list[dict[str, Any]]) -> None:
        self.samples, self.rows, self.last = self.samples + 1, self.rows + len(rows), rows
        lags: dict[Place, int] = {}
        for row in rows:
            place = row["consumerGroup"], row["topic"], row["brokerName"]
            lags[place] = lags.get(place, 0) + row["lag"]
        self.sums.append((at_ms, lags))


def _watch(view: Cluster, config: Config, history: History, ended: threading.Event) -> _Taken:
    """Take samples until ``ended``, or as many as are wanted; where one takes longer, those that were due are left
    out.
    """
    from .sampling import take_sample

    taken = _Taken()
    left = None if config.follow else config.intervals or 1
    due_s = time.monotonic()
    while not ended.is_set():
        at_ms = history.plan(time.time_ns() // 1_000_000)
        if rows := history.add(take_sample(view, config.groups, config.topics)):
            taken.add(at_ms, rows)
        if left is not None:
            left -= 1
            if not left:
                break
        due_s += config.interval_s * max(1, math.ceil((time.monotonic() - due_s) / config.interval_s))
        ended.wait(max(due_s - time.monotonic(), 0.0))
    return taken


def _tell(
    report: Report, config: Config, view: Cluster, history: History, taken: _Taken, silent: Iterable[str]
) -> None:
    """What the run has added; broker groups that were not heard fail it."""
    from .history import KEPT_FILE
    from .sampling import places

    sums = dict(taken.sums)
    times = sorted(sums)
    seen = {place for sample in sums.values() for place in sample}
    heard = {(group, broker) for group, _, broker in seen}
    # A broker group that was heard has told of all topics: one that is not among them is no longer the group's.
    earlier = {
        (group, topic, broker)
        for group, topic, broker in history.places
        if group in config.groups and topic in (config.topics or {topic}) and (group, broker) not in heard
    }
    topics = {topic for _, topic, _ in seen.union(earlier)} | set(config.topics)
    there = places(view, topics)
    subscribed = {(group, topic) for group, topic, _ in seen.union(earlier)}
    subscribed |= {(group, topic) for group in config.groups for topic in config.topics}
    known = {(group, topic, broker) for group, topic in subscribed for broker in there.get(topic, ())}
    known |= {place for place in earlier if place[1] in there}
    history.places = seen | {place for place in history.places if place[1] in there or place[0] not in config.groups}
    history.keep()
    series, unheard = lag_series(sums, config.groups, known)
    report.figures |= {
        "samples": taken.samples,
        "rows": taken.rows,
        "lag": {group: series[group][-1] if times else None for group in config.groups},
    }
    for broker in sorted(unheard.keys() | set(silent)):
        missing = unheard.get(broker, len(times))
        report.problem(
            f"broker group {broker} was not heard in {missing} of {len(times)} samples: lag there is not known; if it "
            f"was retired, take it out of {config.checkpoint}/{KEPT_FILE}",
            broker=broker,
        )
    if not times:
        report.problem("nothing was seen: no broker answered, or the groups have no topic yet")
        return
    wanted = 0 if config.follow else config.intervals or 1
    if taken.samples < wanted:
        report.problem(f"nothing was seen in {wanted - taken.samples} of {wanted} samples: the lag then is not known")
    report.summary = ", ".join(_told(group, series[group]) for group in config.groups)
    report.subject.append(_seen(times, config.namesrv))
    report.plots.append(Plot("Lag", "times", times, series, "messages", axis_name="at (UTC)"))
    columns = ["consumerGroup", "topic", "brokerName", "queueId", "lag", "producedPerSecond"]
    columns += ["consumedPerSecond", "oldestUnreadAgeMs"]
    ends = [row for row in taken.last if row["lag"]]
    ends.sort(key=lambda row: (-row["lag"], row["consumerGroup"], row["topic"], row["brokerName"], row["queueId"]))
    names = ["group", "topic", "broker", "queue", "lag", "produced per s", "consumed per s", "oldest unread ms"]
    lines = [[row[name] for name in columns] for row in ends[:QUEUES_SHOWN_MAX]]
    if lines:
        queues = [f"{topic} {broker} {queue}" for _, topic, broker, queue, *_ in lines[:QUEUES_PLOTTED_MAX]]
        behind = {"behind": [float(line[4]) for line in lines[:QUEUES_PLOTTED_MAX]]}
        report.plots.append(Plot("Lag by queue, at the end", "bars", queues, behind, "messages", axis_name="queue"))
        rates = {
            name: [None if line[at] is None else float(line[at]) for line in lines[:QUEUES_PLOTTED_MAX]]
            for name, at in (("produced", 5), ("consumed", 6))
        }
        if any(value is not None for values in rates.values() for value in values):
            report.plots.append(
                Plot("Rates of these queues, at the end", "bars", queues, rates, "/s", axis_name="queue")
            )
    report.tables.append(Table("Queues that are furthest behind at the end", names, lines))


def _seen(times: Sequence[int], where: str) -> str:
    """How many looks the report shows, and the time that they really took: a busy machine looks less often."""
    if len(times) == 1:
        return f"One look, at {where}."
    return f"{len(times):,} looks in {(times[-1] - times[0]) / 1000:,.1f} s, at {where}."


def _told(group: str, lags: Sequence[float | None]) -> str:
    """Where a group stands at the end, and whether it has caught up since the beginning."""
    known = [lag for lag in lags if lag is not None]
    if not known or lags[-1] is None:
        return f"{group}: lag unknown"
    last = known[-1]
    moves = (
        "" if len(known) < 2 else ", growing" if last > known[0] else ", shrinking" if last < known[0] else ", steady"
    )
    return f"{group} has read everything" if not last else f"{group} is {last:,.0f} messages behind{moves}"


def lag_series(
    sums: Mapping[int, Mapping[Place, int]], groups: Iterable[str], known: Iterable[Place]
) -> tuple[dict[str, list[float | None]], dict[str, int]]:
    """The lag of each group at each time, null where a broker group is missing; and how often each is.

    ``known``: places that every sample should have; one that a sample has is expected in those behind it, too.
    """
    series: dict[str, list[float | None]] = {group: [] for group in groups}
    unheard: dict[str, int] = {}
    appear_later = {place for sample in sums.values() for place in sample}
    expected = set(known) - appear_later
    for at in sorted(sums):
        expected |= sums[at].keys()
        missing = expected - sums[at].keys()
        for broker in {broker for _, _, broker in missing}:
            unheard[broker] = unheard.get(broker, 0) + 1
        for group, values in series.items():
            own = [lag for (name, _, _), lag in sums[at].items() if name == group]
            values.append(None if not own or any(name == group for name, _, _ in missing) else sum(own))
    return series, unheard
