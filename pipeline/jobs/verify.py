"""Proves the records of a store, and that its consume queues and index say the same; compares it with a replica.

- The scan: sizes, magic, own position and body checksum of each record; each damage is a problem.
- Topics have names that a topic may have.
- Queue offsets are contiguous, and queue entries name the records: per queue and 300,000 offsets, the number, the ends,
  the bytes and a digest of (offset, position, size) of records and of entries; where they differ, row by row.
- The index has the hashes of the log's keys, and no others: per 64 MiB of the log, the number and a digest of
  (position, hash); where they differ, key by key. A store with keys and no index is a problem, unless it is left out.
- Against a replica: blocks of 1 MiB over the common range of both logs.

Records that have no queue entry (half messages, rolled back ones, inner batches) are left out, and queues that repeat
other queues' records (``%LMQ%``). On an open store queues and index may end earlier than the log: dispatch follows it.
An index may begin later than the log, and after a change of master RocketMQ leaves the keys of records that were cut
off in it, and those of as many later ones out of it: both are counted, and no problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.proto.errors import ConfigError

from ..stores.directory import list_store
from ..stores.files import FileReader, open_file_system
from ..stores.model import Store
from ..stores.options import PART_OFFSETS
from .config import setting
from .frames import EXAMPLES_MAX, Frames, count_hidden
from .reading import (
    has_no_entry,
    is_sound,
    is_sound_name,
    list_stores,
    one_task_each,
    require_names,
)
from .report import Report, Table
from .verify_index import prove_index

_SCHEMA = (
    "topic string, brokerName string, queueId int, queueOffset bigint, physicalOffset bigint, size int, sysFlag int, "
    "corrupt string"
)
_PARTS = (
    "topic string, brokerName string, queueId int, part bigint, messages bigint, firstOffset bigint, "
    "lastOffset bigint, bytes bigint, digest bigint, hasEntries boolean, physicalOffset bigint, corrupt string"
)
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to prove."""

    store: tuple[str, ...] = setting("store directories, patterns or URIs, separated by commas")
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    replica: str | None = setting("another copy of the (single) store, to compare the logs", None)
    index: bool = setting("prove the index files too", True)
    up_to: str = setting("on an open store: confirm or end", "confirm")


def check(config: Config) -> None:
    """Nothing, if the options are right, as far as can be told without Spark.

    Raises:
        ConfigError: they are not.
    """
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

    Raises:
        ConfigError: an option is wrong.
    """
    check(config)
    report = Report("verify", asdict(config))
    stores = list_stores("verify", config.store, config.broker_name, config.up_to)
    frames = Frames(spark, config, stores)
    for store in stores:
        for gap in store.gaps:
            report.problem(gap.reason, path=store.root, offset=gap.start, end=gap.end)
    _compare(report, frames)
    if config.index:
        prove_index(report, frames)
    if config.replica is not None:
        other = list_store(config.replica, up_to=config.up_to)
        _replica(spark, report, stores[0], other)
    report.figures["log_bytes"] = sum(file.end for store in stores for file in store.files)
    report.finish()
    report.figures["mb_per_s"] = round(report.figures["log_bytes"] / 1e6 / max(report.seconds, 1e-3), 1)
    return report


def _digest(parts: Any, *more: Any) -> Any:
    from pyspark.sql import functions as f

    return parts.groupBy("brokerName", "topic", "queueId", "part", *more).agg(
        f.count("*").alias("rows"),
        f.sum("messages").alias("messages"),
        f.min("firstOffset").alias("first"),
        f.max("lastOffset").alias("last"),
        f.bit_xor("digest").alias("digest"),
        f.sum("bytes").alias("bytes"),
    )


def _compare(report: Report, frames: Frames) -> None:
    from pyspark.sql import functions as f

    queue_parts = frames.all("queue_parts", partOffsets=PART_OFFSETS)
    parts = frames.all("parts", _PARTS, partOffsets=PART_OFFSETS, onCorrupt="emit")
    found = _digest(parts, "hasEntries", f.col("corrupt").isNotNull().alias("damaged")).collect()
    sound = [row for row in found if not row["damaged"]]
    for row in found:
        if row["damaged"]:
            _name_damage(report, frames, row["brokerName"], row["rows"])
    for broker in frames.stores:
        wrong = [row for row in sound if row["brokerName"] == broker and not is_sound_name(row["topic"])]
        if wrong:
            _name_topics(report, frames, broker, sum(row["messages"] for row in wrong))
    report.figures["records"] = sum(row["messages"] for row in sound)
    report.figures["record_bytes"] = sum(row["bytes"] for row in sound)
    entries = _digest(queue_parts.where(~f.col("topic").startswith("%LMQ%"))).collect()
    report.figures["queue_entries"] = sum(row["messages"] for row in entries)
    _name_differences(
        report, frames, _differing([row for row in sound if row["hasEntries"] and is_sound_name(row["topic"])], entries)
    )


def _name_damage(report: Report, frames: Frames, broker: str, count: int) -> None:
    """The first pieces of a log that hold no messages, in a second pass: sound stores need none."""
    rows = frames.one(broker, "parts", _PARTS, onCorrupt="emit").where("corrupt is not null")
    shown = rows.select("physicalOffset", "bytes", "corrupt").orderBy("physicalOffset").limit(EXAMPLES_MAX).collect()
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


class _Place(NamedTuple):
    """A part of a queue in which log and queue disagree, and the queue offsets that occur in it."""

    broker: str
    topic: str
    queue: int
    part: int
    first: int
    last: int
    records: int
    entries: int


def _differing(log: list[Any], entries: list[Any]) -> list[_Place]:
    """Where log and queue disagree, or the log's offsets are not contiguous."""

    def key(row: Any) -> tuple[str, str, int, int]:
        return row["brokerName"], row["topic"], row["queueId"], row["part"]

    in_log = {key(row): row for row in log}
    in_queue = {key(row): row for row in entries}
    wrong = []
    for place in in_log.keys() | in_queue.keys():
        ours, theirs = in_log.get(place), in_queue.get(place)
        both = [row for row in (ours, theirs) if row is not None]
        same = len(both) == 2 and all(both[0][name] == both[1][name] for name in ("messages", "bytes", "digest"))
        first, last = min(row["first"] for row in both), max(row["last"] for row in both)
        if ours is None or not same or ours["messages"] != last - first + 1:
            counts = (row["messages"] if row is not None else 0 for row in (ours, theirs))
            wrong.append(_Place(*place, first, last, *counts))
    return sorted(wrong)


def _name_differences(report: Report, frames: Frames, wrong: list[_Place]) -> None:
    """Row by row, in the parts that differ."""
    from pyspark.sql import functions as f

    late = 0
    for place in wrong[:EXAMPLES_MAX]:
        chosen: dict[str, Any] = {"topics": place.topic, "queueIds": place.queue}
        within = f.col("queueOffset").between(place.first, place.last)
        queue = frames.one(place.broker, "queues", **chosen)
        log = frames.one(place.broker, "messages", _SCHEMA, onCorrupt="emit", **chosen).where("corrupt is null")
        log = log.where(~has_no_entry(f.col("sysFlag")) & is_sound(f.col("topic")))
        ours = log.where(within).select("queueOffset", f.struct("physicalOffset", "size").alias("record"))
        theirs = queue.where(within).select("queueOffset", f.struct("physicalOffset", "size").alias("entry"))
        store = frames.stores[place.broker]
        start = store.files[0].start if store.files else 0
        differing = ours.join(theirs, "queueOffset", "full_outer").where("not (record <=> entry)")
        rows = (
            differing.where(f.coalesce(f.col("entry.physicalOffset"), f.lit(start)) >= start)
            .orderBy("queueOffset")
            .limit(EXAMPLES_MAX)
            .collect()
        )
        reached = theirs.agg(f.max("queueOffset")).first()[0]
        where: dict[str, Any] = {"broker": place.broker, "topic": place.topic, "queue": place.queue}
        for row in rows:
            behind = row["entry"] is None and (reached is None or row["queueOffset"] > reached)
            if behind and store.is_open:
                late += 1  # not dispatched yet
                continue
            report.problem(_difference(row), **where, queue_offset=row["queueOffset"])
        gaps = _name_gaps(report, ours, where)
        if not rows and not gaps and not store.is_open and not differing.take(1):
            text = f"{place.records} records and {place.entries} queue entries differ, and none was found that does"
            report.problem(text, **where, queue_offset=place.first)
    if len(wrong) > EXAMPLES_MAX:
        report.problem(f"{len(wrong) - EXAMPLES_MAX} more parts of queues differ", count=len(wrong) - EXAMPLES_MAX)
    if late:
        report.figures["not_dispatched_yet"] = late


def _difference(row: Any) -> str:
    record, entry = row["record"], row["entry"]
    if entry is None:
        return f"the record at {record['physicalOffset']} has no queue entry"
    if record is None:
        return f"the queue entry names {entry['physicalOffset']}, where no record of this queue lies"
    return (
        f"the queue entry names {entry['physicalOffset']} ({entry['size']} bytes), "
        f"the record lies at {record['physicalOffset']} ({record['size']} bytes)"
    )


def _name_gaps(report: Report, ours: Any, where: dict[str, Any]) -> int:
    """Offsets that follow no other one; how many were named."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = f.lag("queueOffset").over(Window.orderBy("queueOffset"))
    gaps = ours.withColumn("before", before).where("queueOffset <> before + 1").limit(EXAMPLES_MAX).collect()
    for row in gaps:
        report.problem(f"queue offset {row['queueOffset']} follows {row['before']} in the log", **where)
    return len(gaps)


def _replica(spark: Any, report: Report, left: Store, right: Store) -> None:
    start = max(left.files[0].start, right.files[0].start)
    end = min(left.end, right.end)
    if start >= end:
        report.problem(f"the logs have no byte in common: {left.root} ends at {left.end}, {right.root} at {right.end}")
        return
    blocks = [(at, min(at + 64 * BLOCK_BYTES, end)) for at in range(start, end, 64 * BLOCK_BYTES)]

    def compare(block: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        found = list(differing_blocks(left, right, *block))
        yield pa.RecordBatch.from_pydict({"block": pa.array(found, pa.int64())})

    differing = sorted(row["block"] for row in one_task_each(spark, blocks, compare, "block bigint").collect())
    report.figures |= {"compared_bytes": end - start, "differing_blocks": len(differing)}
    rows = []
    for block in differing[:EXAMPLES_MAX]:
        at = first_difference(left, right, block, min(block + BLOCK_BYTES, end))
        rows.append([block, at])
        report.problem(f"{left.root} and {right.root} differ from {at} on", offset=at)
    if len(differing) > EXAMPLES_MAX:
        report.problem(f"{len(differing) - EXAMPLES_MAX} more blocks differ", count=len(differing) - EXAMPLES_MAX)
    if rows:
        report.tables.append(Table("Blocks of 1 MiB that differ", ["block at", "first differing byte"], rows))


def differing_blocks(left: Store, right: Store, start: int, end: int) -> Iterator[int]:
    """Log positions of the blocks in ``[start, end)`` that are not the same bytes in both logs."""
    at = start
    while at < end:
        stop = min(at + BLOCK_BYTES, end)
        if not np.array_equal(read_log(left, at, stop), read_log(right, at, stop)):
            yield at
        at = stop


def first_difference(left: Store, right: Store, start: int, end: int) -> int:
    """Log position of the first byte in ``[start, end)`` that differs; ``end`` without one."""
    ours, theirs = read_log(left, start, end), read_log(right, start, end)
    unequal = np.flatnonzero(ours != theirs)
    return start + int(unequal[0]) if len(unequal) else end


def read_log(store: Store, start: int, end: int) -> Any:
    """Bytes ``[start, end)`` of a log; zeros where a file is missing or short."""
    out = np.zeros(end - start, np.uint8)
    file_system, _ = open_file_system(store.root)
    for file in store.files:
        first, last = max(start, file.start), min(end, file.start + file.size)
        if first < last:
            with FileReader(file_system, file.path) as reader:
                data = reader.read(first - file.start, last - first)
            out[first - start : first - start + len(data)] = data
    return out
