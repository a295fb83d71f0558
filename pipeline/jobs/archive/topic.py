"""Topics of a running cluster into a lake, over the network: for lakes that cannot see the brokers' directories.

Each run archives what came since the last one. It adds all of it to the lake's Delta table in one commit, which says up
to which offset of each queue the lake reaches, so the job may be killed and repeated at any time. The archive's mark at
each broker is a position of its log below which every message of these topics is archived: as far as the log was when
the run began, so that topics in which nothing comes do not hold back the retention of others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pages.plots import Plot
from penstock.proto.errors import BrokerUnavailable, StorageError

from ...columns.schema import as_struct
from ...lake.entries import Entry
from ...lake.lake import Lake
from ...lake.lake_files import COLUMNS, write_sorted
from ...options import setting
from ...topics.offsets import EARLIEST
from ..framework.report import Report, Table
from ..framework.topics import read_topics, require_topic
from .job import KEPT_HOURS, add, contents, require_kind
from .marks import archive_marks, require_forward, set_watermarks


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
    """Archive what is new. The figures hold the mark of each broker.

    Raises:
        ConfigError: a broker holds a mark of this name beyond what is stored there: it is another archive's.
        StorageError: another job archived into the lake meanwhile; or a failover has cut off what the lake has.
    """
    for topic in config.topics:
        require_topic(config.namesrv, topic)
    report = Report("archive-topic", asdict(config))
    lake = Lake(config.lake)
    require_kind(lake, of_topics=True)
    entries = lake.entries()
    reached: dict[tuple[str, str, int], int] = {}
    epochs: dict[str, int] = {}
    for entry in entries:
        broker = entry.broker
        if entry.epochs:
            epochs[broker] = max(epochs.get(broker, 0), entry.epochs[-1][0])
        for topic, queue, _, _, last in entry.queues:
            reached[topic, broker, queue] = max(reached.get((topic, broker, queue), 0), last + 1)
    starting, count, marks, epochs = _starting(config, reached, epochs)
    name = config.archive_name or lake.mark_name("archive-topic")
    held = _held(config, lake, name, {one.broker for one in entries}, marks) if config.hold else {}
    made: list[Entry] = []
    lake.vacuum(KEPT_HOURS)
    if count:
        frame = read_topics(spark, config.namesrv, config.topics, startingOffsets=starting)
        made = _archive(frame, lake, entries, epochs)
    for entry in (*entries, *made):
        least = marks.get(entry.broker, held.get(entry.broker, 0))
        marks[entry.broker] = max(least, entry.endPhysicalOffset)
    if config.hold and marks:
        lake.sync_log()  # others' commits count too
        set_watermarks(config.namesrv, name, marks)
        report.figures["archive_name"] = name
    report.finish()
    size = sum(entry.recordBytes for entry in made)
    report.figures |= {
        "rows": sum(entry.rows for entry in made),
        "record_bytes": size,
        "mb_per_s": round(size / 1e6 / max(report.seconds, 1e-3), 1),
        "watermarks": marks,
    }
    lines = [[one.broker, *queue] for one in made for queue in one.queues]
    report.tables.append(Table("Archived", ["broker", "topic", "queue", "messages", "first", "last"], lines))
    bars = {"messages": [float(one.rows) for one in made]}
    report.plots.append(Plot("Messages by broker", "bars", [one.broker for one in made], bars))
    return report


def _held(config: Config, lake: Lake, name: str, brokers: Iterable[str], marks: Mapping[str, int]) -> dict[str, int]:
    """What the brokers hold under this name, before anything is written.

    ``marks``: up to where the brokers' logs have been told of; of others, whose master does not answer, nothing is due.

    Raises:
        ConfigError: a broker's is beyond that, so it is another archive's.
    """
    found = archive_marks(config.namesrv, {*brokers, *marks})
    require_forward(lake, name, marks, found)
    return {broker: own.get(name, 0) for broker, own in found.items()}


def _starting(
    config: Config, reached: dict[tuple[str, str, int], int], epochs: dict[str, int]
) -> tuple[str, int, dict[str, int], dict[str, int]]:
    """Where to begin: each queue where the lake ends, new ones at their first message; how much there is from there.

    And, of brokers whose masters have told of all topics, the log position below which that is all, and the epoch of
    the log. Messages that are gone are an error of the source. ``epochs``: of the logs that the lake's newest are of.
    """
    from penstock.client.cluster import again

    from ...topics.cluster import Positions, cluster
    from ...topics.options import source_options

    given = {"nameServer": config.namesrv, "subscribe": ",".join(config.topics)}
    options = source_options(given, streaming=False)
    view = cluster(config.namesrv)
    before = {(topic, broker): epoch for broker, epoch in epochs.items() for topic in config.topics}

    def look() -> Positions:
        found = view.positions(options, needs_all=True, epochs=before)
        logs = {(broker, epoch) for (_, broker), epoch in found.epochs.items()}
        if len(logs) > len({broker for broker, _ in logs}):
            raise BrokerUnavailable("a mastership began while the topics were looked at: look again")
        return found

    found = again(look, options.timeout_s)
    wanted: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    count = 0
    for queue, held in found.items():
        start = reached.get((queue.topic, queue.broker, queue.queue_id))
        if start is not None and start > found.cut.get(queue, start):
            raise StorageError(
                f"{config.lake}: has messages of queue {queue} up to {start}, and a failover has cut the log at "
                f"{found.cut[queue]}: bring back an older version of the table (DeltaTable.restore), or archive into "
                "another lake"
            )
        wanted[queue.topic][queue.broker][str(queue.queue_id)] = EARLIEST if start is None else start
        count += held.maximum - (held.minimum if start is None else start)
    unsure = {queue.broker for queue in found.keys() - found.certain}
    marks: dict[str, int] = {}
    for (_, broker), offset in found.log_offsets.items():
        if broker not in unsure:
            marks[broker] = min(marks.get(broker, offset), offset)
    return json.dumps(wanted), count, marks, epochs | {broker: epoch for (_, broker), epoch in found.epochs.items()}


def _archive(frame: Any, lake: Lake, before: list[Entry], epochs: Mapping[str, int]) -> list[Entry]:
    """Write what the frame holds, then add it to the table, with an entry per broker.

    ``epochs``: of the brokers' logs, where that is known.
    """
    counts: dict[str, int] = defaultdict(int)
    for one in before:
        counts[one.broker] = max(counts[one.broker], one.segment + 1)
    written = _write(frame, lake.root)
    made: dict[Entry, pa.Table] = {}
    for broker in sorted(pc.unique(written["broker"]).to_pylist()):
        own = written.filter(pc.equal(written["broker"], broker))
        start = pc.min(own["start"]).as_py()
        entry = Entry(
            broker=broker,
            segment=counts[broker],
            startPhysicalOffset=start,
            endPhysicalOffset=pc.max(own["end"]).as_py(),
            fileBytes=0,
            sealed=True,
            damages=0,
            crc32=0,
            epochs=((epochs[broker], start),) if broker in epochs else None,
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


def _write(frame: Any, root: str) -> pa.Table:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_sorted(batches, Lake(root))

    return frame.mapInArrow(write, as_struct(COLUMNS)).toArrow()
