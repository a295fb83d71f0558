"""Topics of a running cluster into a lake, over the network: for lakes that cannot see the brokers' directories.

Each run archives what the lake does not have: what came since the last one, and what others have taken out of the table
since, where the topics still have it. It adds all of it to the lake's Delta table in one commit (a few, where there are
holes), which says which offsets of each queue it has, so the job may be killed and repeated at any time. The archive's
mark at each broker is a position of its log below which every message of these topics is archived: as far as the log
was when the run began, so that topics in which nothing comes do not hold back the retention of others.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pages.plots import Plot
from penstock.proto.errors import BrokerUnavailable, DataLoss, StorageError

from ...columns.schema import CORRUPT_COLUMN, MESSAGE_COLUMNS, as_struct
from ...lake.entries import Entry, holes
from ...lake.lake import Lake
from ...lake.lake_files import COLUMNS, runs_in, write_sorted
from ...options import setting
from ...spark.arrow_types import arrow_schema
from ...spark.workers import keep_loaded
from ...topics.offsets import Queue, Slice
from ...topics.options import SourceOptions, source_options
from ...topics.read.planning import plan
from ..framework.reading import one_task_each
from ..framework.report import Report, Table
from ..framework.topics import require_topic
from .job import KEPT_HOURS, add, contents, figures_of, require_kind
from .marks import archive_marks, require_forward, set_watermarks

if TYPE_CHECKING:
    from ...topics.cluster import Positions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to archive, and where."""

    namesrv: str = setting("nameservers of the cluster")
    topics: tuple[str, ...] = setting("topics, separated by commas; the same ones in each run")
    lake: str = setting("the lake's directory or URI; not one that log files are archived to")
    archive_name: str | None = setting(
        "what the brokers call this archive  [archive-topic- and 8 digits made of the lake's path: each has its own]",
        None,
    )
    hold: bool = setting("retention at the brokers waits for this archive", True)


def run(spark: Any, config: Config) -> Report:
    """Archive what the lake does not have. The figures hold the mark of each broker.

    The report fails where messages were deleted before they were archived.
    Raises ConfigError: a broker holds a mark of this name beyond what is stored there: it is another archive's.
    Raises StorageError: another job archived into the lake meanwhile; or the lake has more than the brokers, as where a
    failover has cut off what it has.
    Raises DataLoss: messages are in queues that their topic has no more.
    """
    for topic in config.topics:
        require_topic(config.namesrv, topic)
    report = Report("archive-topic", asdict(config))
    lake = Lake(config.lake)
    require_kind(lake, of_topics=True)
    whole = set(lake.entries())
    entries = lake.readable()
    epochs: dict[str, int] = {}
    for entry in entries:
        if entry.epochs:
            epochs[entry.broker] = max(epochs.get(entry.broker, 0), entry.epochs[-1][0])
    options = source_options({"nameServer": config.namesrv, "subscribe": ",".join(config.topics)}, streaming=False)
    found = _positions(config, options, epochs)
    wanted = _wanted(report, lake, _held(lake, entries, whole, found), found)
    marks = _marks(found)
    name = config.archive_name or lake.mark_name("archive-topic")
    if config.hold:
        require_forward(lake, name, marks, archive_marks(config.namesrv, marks))
    made: list[Entry] = []
    lake.vacuum(KEPT_HOURS)
    for part in wanted:
        made += _archive(spark, options, lake, [*entries, *made], found, part)
    if config.hold and marks:
        lake.sync_log()  # others' commits count too
        set_watermarks(config.namesrv, name, marks)
        report.figures["archive_name"] = name
    report.finish()
    report.figures |= {**figures_of(made, report.seconds), "watermarks": marks}
    lines = [[one.broker, *queue] for one in made for queue in one.queues]
    report.tables.append(Table("Archived", ["broker", "topic", "queue", "messages", "first", "last"], lines))
    bars = {"messages": [float(one.rows) for one in made]}
    report.plots.append(Plot("Messages by broker", "bars", [one.broker for one in made], bars))
    return report


def _positions(config: Config, options: SourceOptions, epochs: Mapping[str, int]) -> Positions:
    """What the topics have. ``epochs``: of the brokers' logs that the lake's newest messages are of."""
    from penstock.client.cluster import again

    from ...topics.cluster import cluster

    view = cluster(options.name_server, options.security)
    before = {(topic, broker): epoch for broker, epoch in epochs.items() for topic in config.topics}

    def look() -> Positions:
        found = view.positions(options, needs_all=True, epochs=before)
        logs = {(broker, epoch) for (_, broker), epoch in found.epochs.items()}
        if len(logs) > len({broker for broker, _ in logs}):
            raise BrokerUnavailable("a mastership began while the topics were looked at: look again")
        return found

    return again(look, options.timeout_s)


def _held(
    lake: Lake, entries: list[Entry], whole: Collection[Entry], found: Positions
) -> dict[Queue, list[tuple[int, int]]]:
    """What the lake has of each queue of the topics as they are now: nothing of those that were made anew since.

    ``entries``: what can be read, of each broker in the order of its runs. Of those that are not ``whole``, since
    others have taken files out of the table, it is in the files that are left.
    """
    held: dict[tuple[str, str], dict[Queue, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    lives: dict[tuple[str, str], int] = {}
    for entry in entries:
        created = dict(entry.created or ())
        runs: Iterable[tuple[str, int, int, int]]
        if entry in whole:
            runs = ((topic, queue_id, first, last + 1) for topic, queue_id, _, first, last in entry.queues)
        else:
            lake.require_files([entry])
            runs = (run for file in entry.files for run in runs_in(lake, file.name))
        for topic, queue_id, start, end in runs:
            place = topic, entry.broker
            if topic not in created and (entry.lastStoreTimestamp or 0) < found.created.get(place, 0):
                continue  # of an older lake, which does not say it, and stored before the topic was there
            if topic in created and lives.setdefault(place, created[topic]) != created[topic]:
                lives[place] = created[topic]
                held[place].clear()
            held[place][Queue(*place, queue_id)].append((start, end))
    for (topic, broker), life in found.created.items():
        if lives.get((topic, broker), life) != life:
            log.warning("topic %s was made anew at %s since it was archived: all of it is new", topic, broker)
            held[topic, broker].clear()
    return {queue: ranges for queues in held.values() for queue, ranges in queues.items()}


def _wanted(
    report: Report, lake: Lake, held: Mapping[Queue, list[tuple[int, int]]], found: Positions
) -> list[list[Slice]]:
    """What the lake does not have, in parts with one slice of a queue at most; the report is told of what is gone.

    There is more than one part where a lake was repaired, or messages were taken out of it.
    Raises StorageError: the lake has more of a queue than its broker. DataLoss: a topic got fewer queues before they
    were archived.
    """
    for queue, (low, high, _) in sorted(found.removed.items()):
        for start, _ in holes([*held.get(queue, ()), (high, high)], low):
            raise DataLoss(f"{lake.root}: {found.unreadable(queue, start)}")
    wanted: list[list[Slice]] = []
    for queue, (low, high, _) in sorted(found.items()):
        ranges = held.get(queue, [])
        reached = max((end for _, end in ranges), default=low)
        end = min(found.cut.get(queue, high), high)
        if reached > end and queue in found.certain:
            why = (
                f"a failover has cut the log at {end}"
                if queue in found.cut
                else f"the queue ends at {end}: its log has lost its end, or its topic was made anew before lakes "
                "noted that"
            )
            raise StorageError(
                f"{lake.root}: has messages of queue {queue} up to {reached}, and {why}: bring back an older version "
                "of the table (DeltaTable.restore), or archive into another lake"
            )
        if reached < low and queue in found.certain:
            report.problem(f"queue {queue}: the messages {reached}..{low} were deleted before they were archived")
        missing = [Slice(queue, *part) for part in holes([*ranges, (high, high)], low) if part[1] <= high]
        for number, part in enumerate(missing):
            if number == len(wanted):
                wanted.append([])
            wanted[number].append(part)
    return wanted


def _marks(found: Positions) -> dict[str, int]:
    """Of brokers whose masters have told of all topics, the log position below which there is nothing but this."""
    unsure = {queue.broker for queue in found.keys() - found.certain}
    marks: dict[str, int] = {}
    for (_, broker), offset in found.log_offsets.items():
        if broker not in unsure:
            marks[broker] = min(marks.get(broker, offset), offset)
    return marks


def _archive(
    spark: Any, options: SourceOptions, lake: Lake, before: list[Entry], found: Positions, wanted: list[Slice]
) -> list[Entry]:
    """Write these messages, then add them to the table, with an entry per broker."""
    counts: dict[str, int] = defaultdict(int)
    for one in before:
        counts[one.broker] = max(counts[one.broker], one.segment + 1)
    epochs = {broker: epoch for (_, broker), epoch in found.epochs.items()}
    mean_bytes = {queue: held.mean_bytes for queue, held in found.items()}
    written = _write(spark, options, lake.root, plan(wanted, mean_bytes))
    made: dict[Entry, pa.Table] = {}
    for broker in sorted(pc.unique(written["broker"]).to_pylist()):
        own = written.filter(pc.equal(written["broker"], broker))
        start = pc.min(own["start"]).as_py()
        topics = pc.unique(own["topic"]).to_pylist()
        created = ((topic, found.created.get((topic, broker))) for topic in sorted(topics))
        entry = Entry(
            broker=broker,
            segment=counts[broker],
            startPhysicalOffset=start,
            endPhysicalOffset=pc.max(own["end"]).as_py(),
            fileBytes=0,
            sealed=True,
            damages=pc.sum(own["unreadable"]).as_py(),
            crc32=0,
            epochs=((epochs[broker], start),) if broker in epochs else None,
            created=tuple((topic, created_ms) for topic, created_ms in created if created_ms is not None),
            **contents(own),
        )
        made[entry] = own
    taken = add(lake, made)
    if len(taken) < len(made):
        raise StorageError(
            f"{lake.root}: another job has archived these topics into the lake meanwhile: run it again when that one "
            "is done, for what is left"
        )
    return taken


def _write(spark: Any, options: SourceOptions, root: str, groups: list[list[Slice]]) -> pa.Table:
    """Write the messages of each group in a task of its own; what the Parquet files hold."""

    def write(wanted: list[Slice]) -> Iterator[pa.RecordBatch]:
        from ...topics.cluster import cluster
        from ...topics.read.reading import SliceReader  # loads kernels

        keep_loaded()
        view, schema = cluster(options.name_server, options.security), arrow_schema(MESSAGE_COLUMNS | CORRUPT_COLUMN)
        reader = SliceReader(view, options, schema, keeps_bad_bodies=True)
        yield from write_sorted(reader.read(wanted), Lake(root))

    return one_task_each(spark, groups, write, as_struct(COLUMNS)).toArrow()
