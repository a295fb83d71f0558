"""Proves the records of a store, and that its consume queues and index say the same; compares it with a replica.

- The scan: sizes, magic, own position and body checksum of each record; each damage is a problem.
- Topics have names that a topic may have.
- Queue offsets are contiguous, and queue entries name the records: per queue and 300,000 offsets, the number, the ends,
  the bytes and a digest of (offset, position, size, tags code) of records and of entries; parts that differ are
  compared entry by entry, all in one more pass over the log.
- Where the log deletes topics (:mod:`..framework.lives`), each life of a topic is contiguous, and begins at 0 behind a
  deletion; queues have the last one alone.
- The index has the hashes of the log's keys, and no others: per 64 MiB of the log, the number and a digest of
  (position, hash); where they differ, key by key. Slots and chains lead to each entry. A store with keys and no index
  is a problem, unless it is left out.
- Against a replica: its log (:mod:`.replica`).

Records that have no queue entry (half messages, rolled back ones, inner batches) are left out, and queues that repeat
other queues' records (``%LMQ%``). Queues and index may begin before the log, where retention has deleted its oldest
files. On an open store they may end earlier than the log, since dispatch follows it, or later, since it goes on; on a
closed one, what names positions behind the log's end is a problem, but in an index of a log that had several masters,
who cut records off. An index may begin later than the log, and after a change of master RocketMQ leaves the keys of
records that were cut off in it, and those of as many later ones out of it: both are counted, and no problem. A derived
file that cannot be read is a problem, and the rest is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs

from penstock.formats.directory import EXTENSIONS, is_safe_topic
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES
from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError, StorageError

from ...columns.schema import as_struct
from ...options import setting
from ...stores.derived import DIFFERENCE_COLUMNS, QueueFile, list_queue_files, read_queue_file
from ...stores.directory import list_store, list_stores, require_names
from ...stores.files import open_file_system
from ...stores.model import Store
from ...stores.options import PART_OFFSETS
from ..framework.frames import EXAMPLES_MAX, Frames, count_hidden
from ..framework.here import rows_here
from ..framework.lives import Deletions
from ..framework.reading import is_sound
from ..framework.report import PROBLEMS_MAX, Check, Report, Table
from .index import prove_index
from .replica import compare_logs

_SCHEMA = "topic string, brokerName string, physicalOffset bigint, size int, corrupt string"
_PARTS = (
    "topic string, brokerName string, queueId int, part bigint, messages bigint, firstOffset bigint, "
    "lastOffset bigint, bytes bigint, digest bigint, offsets bigint, hasEntries boolean, physicalOffset bigint, "
    "corrupt string"
)
_ENTRIES = (
    "topic string, queueId int, part bigint, hasEntries boolean, physicalOffset bigint, entries binary, corrupt string"
)
_LIFE = itemgetter("brokerName", "topic", "queueId", "life")
"""Which life of which queue a row is of."""
_TOPICS_MAX = 100
TOPICS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to prove."""

    store: tuple[str, ...] = setting("store directories, patterns or URIs, separated by commas")
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    replica: str | None = setting("another copy of the (single) store, to compare the logs", None)
    index: bool = setting("prove the index files too", True)
    up_to: str = setting("on an open store: confirm or end", "confirm")


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    if config.up_to not in ("confirm", "end"):
        raise ConfigError(f"verify: up_to is {config.up_to!r}: confirm or end")
    roots = require_names("verify", config.store, config.broker_name)
    if config.replica is not None and len(roots) != 1:
        raise ConfigError(
            f"verify: replica is {config.replica!r}, a copy of one store, and store names {len(roots)} "
            f"({', '.join(roots)}): name the one that it is a copy of"
        )


def run(spark: Any, config: Config) -> Report:
    """All checks. The report fails with the first problem and names up to 1000.

    Raises ConfigError: an option is wrong.
    """
    check(config)
    report = Report("verify", asdict(config))
    stores = list_stores("verify", config.store, config.broker_name, config.up_to)
    frames = Frames(spark, stores, config.up_to)
    with report.checking("log files", "log files follow each other without gaps, up to where the log ended") as judged:
        judged.checked = sum(len(store.files) for store in stores)
        for store in stores:
            for gap in store.gaps:
                report.problem(gap.reason, path=store.root, offset=gap.start, end=gap.end)
    _compare(report, frames)
    if config.index:
        with report.checking("index", "the index has the hashes of the log's keys and no others") as judged:
            prove_index(report, frames)
            judged.checked = report.figures["keys"]
            judged.note = "" if judged.checked else "no message has a key"
    else:
        report.checks.append(Check("index", "the index agrees with the log", note="left out by the option index"))
    if config.replica is not None:
        other = list_store(config.replica, up_to=config.up_to)
        with report.checking("replica", "both logs are the same bytes where both have some") as judged:
            compare_logs(spark, report, stores[0], other)
            judged.checked = report.figures.get("compared_bytes", 0)
    report.figures["log_bytes"] = sum(file.end for store in stores for file in store.files)
    _sum_up(report, stores)
    return report.finish()


def _sum_up(report: Report, stores: Sequence[Store]) -> None:
    """The verdict in words, and what the stores are."""
    bytes_ = report.figures["log_bytes"]
    report.summary = f"sound: {report.figures['records']:,} records, {bytes_:,} bytes of log"
    lines: list[list[Any]] = []
    for store in stores:
        start = store.files[0].start if store.files else 0
        state = "abort lies there: a broker runs on it, or has crashed" if store.is_open else "closed"
        size = sum(file.end for file in store.files)
        lines.append([store.root, store.broker_name, len(store.files), size, start, store.end, state, store.tail])
    columns = ["store", "broker", "log files", "bytes", "first position", "end", "state", "end of the log"]
    report.tables.insert(0, Table("Stores", columns, lines))


def _tell_topics(report: Report, sound: Iterable[Mapping[str, Any]]) -> None:
    """What the records are of, the largest topics first."""
    sums: dict[str, tuple[set[tuple[str, int]], list[int]]] = {}
    for row in sound:
        queues, total = sums.setdefault(row["topic"], (set(), [0, 0]))
        queues.add((row["brokerName"], row["queueId"]))
        total[0] += row["messages"]
        total[1] += row["bytes"]
    lines: list[list[Any]] = [[topic, len(queues), *total] for topic, (queues, total) in sums.items()]
    lines.sort(key=lambda line: (-line[3], line[0]))
    report.tables.append(Table("Topics", ["topic", "queues", "records", "bytes"], lines))
    shown = lines[:TOPICS_SHOWN_MAX]
    bytes_ = {"bytes": [float(line[3]) for line in shown]}
    report.plots.append(
        Plot("Bytes of the log, by topic", "bars", [line[0] for line in shown], bytes_, "bytes", axis_name="topic")
    )


def _digest(parts: Any, keys: tuple[Any, ...], *more: Any) -> Any:
    """The sums of each part; ``keys`` tell more of them apart, ``more`` are further sums."""
    from pyspark.sql import functions as f

    return parts.groupBy("brokerName", "topic", "queueId", "part", *keys).agg(
        f.count("*").alias("rows"),
        f.sum("messages").alias("messages"),
        f.min("firstOffset").alias("first"),
        f.max("lastOffset").alias("last"),
        f.bit_xor("digest").alias("digest"),
        f.sum("bytes").alias("bytes"),
        *more,
    )


def _compare(report: Report, frames: Frames) -> None:
    from pyspark.sql import functions as f

    entries: list[Any] = []
    unreadable: list[Any] = []
    with report.checking("queue files", "files of consume queues can be read, and hold entries") as judged:
        for row in _digest(frames.queue_parts(report), ("problem",)).collect():
            (entries if row["problem"] is None else unreadable).append(row)
        for row in sorted(unreadable, key=lambda row: (row["topic"], row["queueId"], row["first"])):
            where = {"broker": row["brokerName"], "topic": row["topic"], "queue": row["queueId"]}
            report.problem(row["problem"], count=row["messages"], **where, queue_offset=row["first"])
        judged.checked = sum(row["messages"] for row in entries)
    parts = frames.log("parts", _PARTS, partOffsets=PART_OFFSETS, onCorrupt="emit")
    keys = "hasEntries", "life", "isLast", f.col("corrupt").isNotNull().alias("damaged")
    found = _digest(parts, keys, f.bit_xor("offsets").alias("offsets")).collect()
    sound = [row for row in found if not row["damaged"]]
    records = report.figures["records"] = sum(row["messages"] for row in sound)
    with report.checking("records", "records have a sound size, magic, position and body checksum") as judged:
        judged.checked = records
        for row in found:
            if row["damaged"]:
                _name_damage(report, frames, row["brokerName"], row["rows"])
    with report.checking("topics", "records are of topics with names that a topic may have") as judged:
        judged.checked = records
        for broker in frames.stores:
            wrong = [row for row in sound if row["brokerName"] == broker and not is_safe_topic(row["topic"])]
            if wrong:
                _name_topics(report, frames, broker, sum(row["messages"] for row in wrong))
    report.figures["record_bytes"] = sum(row["bytes"] for row in sound)
    report.figures["queue_entries"] = sum(row["messages"] for row in entries)
    in_log = [row for row in sound if row["hasEntries"] and is_safe_topic(row["topic"])]
    with report.checking(
        "offsets", "queue offsets in the log have no gaps, and begin at 0 behind a deletion"
    ) as judged:
        judged.checked = sum(row["messages"] for row in in_log)
        for row, last in jumps(in_log):
            where = {"broker": row["brokerName"], "topic": row["topic"], "queue": row["queueId"]}
            report.problem(f"queue offset {row['first']} follows {last} in the log", **where)
        prove_lives(report, in_log, frames.deletions)
    last_lives = [row for row in in_log if row["isLast"]]
    with report.checking("queues", "consume queues name exactly the log's records") as judged:
        judged.checked = sum(row["messages"] for row in last_lives)
        _name_differences(report, frames, differing_parts(last_lives, entries), entries)
    _tell_topics(report, sound)


def _name_damage(report: Report, frames: Frames, broker: str, count: int) -> None:
    """The first pieces of a log that hold no messages, in a second pass: sound stores need none."""
    rows = frames.one(broker, "parts", _PARTS, onCorrupt="emit").where("corrupt is not null")
    gaps = {(gap.start, gap.reason) for gap in frames.stores[broker].gaps}  # named already
    shown = rows.select("physicalOffset", "bytes", "corrupt").orderBy("physicalOffset").limit(EXAMPLES_MAX + len(gaps))
    shown = [row for row in shown.collect() if (row["physicalOffset"], row["corrupt"]) not in gaps][:EXAMPLES_MAX]
    count -= len(gaps)
    for row in shown:
        report.problem(row["corrupt"], broker=broker, offset=row["physicalOffset"], size=row["bytes"])
    count_hidden(report, broker, count - len(shown))


def _name_topics(report: Report, frames: Frames, broker: str, count: int) -> None:
    """Messages of topics that cannot be."""
    log = frames.one(broker, "messages", _SCHEMA, onCorrupt="emit")
    rows = log.where("corrupt is null").where(~is_sound(log["topic"]))
    shown = rows.select("topic", "physicalOffset", "size").orderBy("physicalOffset").limit(EXAMPLES_MAX).collect()
    for row in shown:
        text = f"the topic {row['topic']!r} is no name"
        report.problem(text, broker=broker, offset=row["physicalOffset"], size=row["size"])
    count_hidden(report, broker, count - len(shown))


class Place(NamedTuple):
    """A part of a queue."""

    broker: str
    topic: str
    queue: int
    part: int


def differing_parts(log: Iterable[Mapping[str, Any]], entries: Iterable[Mapping[str, Any]]) -> list[Place]:
    """Where log and queue disagree, or the log's offsets are not contiguous."""

    def by_place(rows: Iterable[Mapping[str, Any]]) -> dict[Place, Mapping[str, Any]]:
        return {Place(row["brokerName"], row["topic"], row["queueId"], row["part"]): row for row in rows}

    in_log, in_queue = by_place(log), by_place(entries)
    wrong = []
    for place in in_log.keys() | in_queue.keys():
        ours, theirs = in_log.get(place), in_queue.get(place)
        if (
            ours is None
            or theirs is None
            or any(ours[name] != theirs[name] for name in ("messages", "first", "last", "bytes", "digest"))
            or ours["messages"] != ours["last"] - ours["first"] + 1
        ):
            wrong.append(place)
    return sorted(wrong)


def jumps(log: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The parts of a queue's life whose first offset does not follow the last one of the part before, and that one."""
    for former, row in pairwise(sorted(log, key=lambda row: (*_LIFE(row), row["first"]))):
        if _LIFE(former) == _LIFE(row) and row["first"] != former["last"] + 1:
            yield row, former["last"]


def prove_lives(report: Report, log: Iterable[Mapping[str, Any]], deletions: Mapping[str, Deletions]) -> None:
    """Note what is wrong with the lives in ``log``: sums of parts; ``deletions`` per broker.

    The lives in front of the last deletion have no queue to be compared with: each offset between their ends has to be
    there once.
    """
    firsts: dict[tuple[str, str, int, int], int] = {}
    for row in sorted(log, key=lambda row: (*_LIFE(row), row["first"])):
        where = {"broker": row["brokerName"], "topic": row["topic"], "queue": row["queueId"]}
        if row["life"]:
            firsts.setdefault(_LIFE(row), row["first"])
        if not row["isLast"] and not _is_whole(row):
            at = deletions[row["brokerName"]][row["topic"]][row["life"]]
            text = f"queue offsets {row['first']} to {row['last']}, in front of the topic's deletion at {at}"
            report.problem(f"{row['messages']} records have the {text}: some are missing, or there twice", **where)
    for (broker, topic, queue, life), first in firsts.items():
        if first:
            at = deletions[broker][topic][life - 1]
            text = f"queue offset {first} is the first behind the topic's deletion at {at}, where 0 is due"
            report.problem(text, broker=broker, topic=topic, queue=queue)


def _is_whole(row: Mapping[str, Any]) -> bool:
    """True if the part has each offset from its first to its last one once."""
    if row["messages"] != row["last"] - row["first"] + 1:
        return False
    from ...columns.part_kernels import digest_range

    return bool(digest_range(row["first"], row["last"]) == row["offsets"])


def _name_differences(report: Report, frames: Frames, wrong: list[Place], entries: list[Any]) -> None:
    """Entry by entry, in the parts that differ."""
    from pyspark.sql import functions as f

    examples = max(1, min(EXAMPLES_MAX, PROBLEMS_MAX // max(1, len(wrong))))
    for broker, store in frames.stores.items():
        places = [place for place in wrong if place.broker == broker]
        if not places:
            continue
        reached: dict[tuple[str, int], int] = {}
        for row in entries if store.is_open else ():
            if row["brokerName"] == broker:
                queue = row["topic"], row["queueId"]
                reached[queue] = max(row["last"], reached.get(queue, -1))
        topics = tuple({place.topic for place in places})
        chosen = topics if len(topics) <= _TOPICS_MAX and all(map(is_safe_topic, topics)) else ()
        log = frames.one(broker, "parts", _ENTRIES, partOffsets=PART_OFFSETS, onCorrupt="emit", topics=chosen)
        # Retention may have deleted log files of an open store since its queues were summed up.
        start = list_store(store.root, broker, up_to="end").files[0].start if store.is_open else store.files[0].start
        deleted = frames.last_deletions(broker) if store.is_open else {}
        files: dict[tuple[str, int], list[QueueFile]] = {}
        for file in list_queue_files(store.root):
            files.setdefault((file.topic, file.queue_id), []).append(file)
        compare = _Comparison(store, start, files, reached, examples, deleted, _has_extension(store.root))
        known = rows_here(frames.spark, [place[1:] for place in places], "topic string, queueId int, part bigint")
        keys = ["topic", "queueId", "part"]
        records = (
            log.where("hasEntries and isLast and corrupt is null")
            .join(f.broadcast(known), keys)
            .select(*keys, "entries")
        )
        both = records.union(known.withColumn("entries", f.lit(b"")))  # a part without records has a row too
        found = both.groupBy(*keys).applyInArrow(compare.as_function(), as_struct(DIFFERENCE_COLUMNS)).collect()
        _name_found(report, broker, found)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares the records of a part with its queue, from the log position ``start`` on; travels to the workers."""

    store: Store
    start: int
    files: dict[tuple[str, int], list[QueueFile]]
    reached: dict[tuple[str, int], int]
    examples: int
    deleted: dict[str, int]  # positions, per topic: its queues may still have entries in front of them
    has_extension: bool

    def as_function(self) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
        """Spark counts the parameters of functions, and ``self`` as one."""
        return lambda _, table: self.run(table)

    def run(self, table: pa.Table) -> pa.Table:
        """What :func:`compare_part` finds in the part whose records are the rows of ``table``."""
        from ...stores.parts import PART_ENTRY, compare_part

        topic, queue_id, part = (table.column(name)[0].as_py() for name in ("topic", "queueId", "part"))
        records = np.frombuffer(b"".join(table.column("entries").to_pylist()), PART_ENTRY)
        return compare_part(
            topic,
            queue_id,
            records,
            self._queue(topic, queue_id, part),
            reached=self.reached.get((topic, queue_id), -1) if self.store.is_open else None,
            has_extension=self.has_extension,
            examples=self.examples,
        )

    def _queue(self, topic: str, queue_id: int, part: int) -> tuple[Any, Any]:
        """Offsets and entries of the part, of records that the log has."""
        store = self.store
        file_system, _ = open_file_system(store.root)
        found = [(np.empty(0, np.int64), np.empty(0, ENTRY))]
        for file in self.files.get((topic, queue_id), ()):
            first = file.start // ENTRY_BYTES
            if first + file.size // ENTRY_BYTES <= part or first >= part + PART_OFFSETS:
                continue
            try:
                offsets, entries = read_queue_file(file_system, file)
            except StorageError:  # told already, by those who read all queues
                continue
            physical = entries["physical_offset"]
            kept = (offsets >= part) & (offsets < part + PART_OFFSETS)
            kept &= (physical >= max(self.start, self.deleted.get(topic, 0))) & (physical < store.end)
            found.append((offsets[kept], entries[kept]))
        return tuple(np.concatenate(columns) for columns in zip(*found, strict=True))  # type: ignore[return-value]


def _has_extension(root: str) -> bool:
    file_system, path = open_file_system(root)
    return bool(file_system.get_file_info(f"{path}/{EXTENSIONS}").type != fs.FileType.NotFound)


def _name_found(report: Report, broker: str, found: list[Any]) -> None:
    late = 0
    for row in sorted(found, key=lambda row: (row["topic"], row["queueId"], row["problem"] is None)):
        late += row["late"]
        where = {"broker": broker, "topic": row["topic"], "queue": row["queueId"]}
        if row["problem"] is None:
            if row["messages"]:
                report.problem(f"{row['messages']} more of this kind", count=row["messages"], **where)
        elif row["queueOffset"] is None:
            report.problem(row["problem"], **where)
        else:
            report.problem(row["problem"], **where, queue_offset=row["queueOffset"])
    if late:
        report.figures["not_dispatched_yet"] = report.figures.get("not_dispatched_yet", 0) + late
