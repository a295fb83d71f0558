"""Consume queues and index of a store from its log, by all cores or machines, into a new directory.

Entries are grouped by topic, queue and the file that they belong to: a group is one file, so memory stays at some tens
of megabytes per task however large a queue is. Missing offsets are reported and left as unused places. The index is
divided by neighbouring parts of the log with at most two million keys, one file and task each. Nothing in the store is
touched; the new directory appears when it is complete. Every executor must see it.

Where the log deletes a topic, its queues have what lies behind the last deletion alone, as a broker's have. Light
queues (``%LMQ%``) have an entry for each record that names them, also where the broker's configuration leaves them out;
their missing offsets are filled, as brokers do. Inner batches have their units in ``batchconsumequeue``.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.batch_unit import BATCH_UNIT, BATCH_UNIT_BYTES
from penstock.formats.delay_levels import delivery_times
from penstock.formats.directory import CONSUME_QUEUE, file_name, is_safe_topic
from penstock.formats.index.index_file import DEFAULT_ENTRIES, DEFAULT_SLOTS
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, FILLER_SIZE
from penstock.formats.record.layout import SysFlag
from penstock.inspection.queues.writer import write_batch_queues
from penstock.proto.errors import ConfigError
from penstock.proto.names import LIGHT_PREFIX, SCHEDULE_TOPIC
from penstock.runtime.nearest import hint

from ...columns.schema import as_struct, columns
from ...options import setting
from ...spark.arrow_types import arrow_schema
from ...stores.directory import list_store
from ...stores.files import expand_roots
from ...stores.parts import PART_ENTRY
from ..framework.here import rows_here
from ..framework.lives import Deletions, find_deletions, with_lives
from ..framework.reading import read_stores
from ..framework.report import Report, Table
from .index_files import WRITTEN, divide, file_names, write_index_files

_PARTS = (
    "topic string, queueId int, part bigint, hasEntries boolean, physicalOffset bigint, entries binary, "
    "innerBatches bigint, batches binary"
)
_QUEUE_OFFSET_MAX = ((1 << 63) - 1) // ENTRY_BYTES
"""Names of queue files are byte positions."""
_WRITTEN = columns(
    "topic string, queueId int, file bigint, entries bigint, missing bigint, duplicates bigint, first bigint, "
    "last bigint, innerBatches bigint, units bigint, batches binary"
)
INDEX_UNIT_BYTES = 64 << 20
"""What a part of the index begins and ends at: a whole number of these in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Which store, and where its queues go."""

    store: str = setting("the store's directory")
    into: str = setting("a new directory, in which consumequeue/ is made")
    entries_per_file: int = setting("entries of one queue file (mappedFileSizeConsumeQueue / 20)", 300_000)
    batches_per_file: int = setting(
        "units of one file of inner batches (mapperFileSizeBatchConsumeQueue / 46)", 300_000
    )
    topics: tuple[str, ...] = setting("only these topics and light queues, and no index", ())
    index: bool = setting("the index of keys too", True)
    index_slots: int = setting("hash slots of one index file (maxHashSlotNum)", DEFAULT_SLOTS)
    index_entries: int = setting("entries of one index file (maxIndexNum)", DEFAULT_ENTRIES)
    on_corrupt: str = setting("what to do about damaged bytes: fail or skip", "fail")


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    _check_target(Path(config.into).resolve(), _root(config), config)


def _root(config: Config) -> str:
    """The one directory that the option names: of two stores, the queues would be mixed in one."""
    roots = expand_roots(tuple(filter(None, config.store.split(","))))
    if len(roots) != 1:
        raise ConfigError(
            f"rebuild: store is {config.store!r}, which names {len(roots)} directories ({', '.join(roots)}): name one, "
            "and rebuild the others by themselves"
        )
    return roots[0]


def run(spark: Any, config: Config) -> Report:
    """Make queues and index. The report fails where a queue has holes.

    Raises ConfigError: an option is wrong, or the log has no record of any of the wanted topics.
    """
    check(config)
    into, store = Path(config.into).resolve(), _root(config)
    report = Report("rebuild", asdict(config))
    partial = into.with_name(f"{into.name}.partial-{os.getpid()}")
    per_file, root = config.entries_per_file, str(partial)
    options = {"onCorrupt": config.on_corrupt, "partOffsets": per_file}
    # Positions from the queues that are there would give their faults to the new ones.
    deletions = find_deletions(spark, list_store(store))
    parts = with_lives(spark, _read_parts(spark, store, config.topics, **options), deletions).where("isLast")

    def write(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return write_part(root, table, per_file)

    try:
        partial.mkdir(parents=True)
        written = parts.groupBy("topic", "queueId", "part").applyInArrow(write, as_struct(_WRITTEN)).collect()
        _require_topics(spark, config, store, {row["topic"] for row in written}, deletions, report)
        write_batch_queues(partial, batches_of(written), config.batches_per_file * BATCH_UNIT_BYTES)
        indexed = _write_index(spark, config, store, root) if config.index and not config.topics else []
        partial.rename(into)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _summarize(report, written, deletions)
    tell_batches(report, written)
    report.figures["keys"] = sum(row["keys"] for row in indexed)
    lines = [[row[name] for name in ("part", "keys", "first", "last")] for row in sorted(indexed)]
    report.tables.append(Table("Index", ["part", "keys", "first position", "last position"], lines))
    report.finish()
    report.figures["entries_per_s"] = round(report.figures["entries"] / max(report.seconds, 1e-3))
    return report


def batches_of(written: list[Any]) -> dict[tuple[str, int], Any]:
    """The units of each queue that has some: a unit's place depends on how many lie before it, which no task knows."""
    found: dict[tuple[str, int], bytes] = {}
    for row in sorted(written, key=lambda row: row["file"]):
        if row["units"]:
            queue = row["topic"], row["queueId"]
            found[queue] = found.get(queue, b"") + row["batches"]
    return {queue: np.frombuffer(units, BATCH_UNIT) for queue, units in found.items()}


def _read_parts(spark: Any, store: str, topics: tuple[str, ...], **options: object) -> Any:
    """The parts of the wanted topics and light queues. Records of any topic may stand in a light queue."""
    more = {"view": "parts", "useConsumeQueue": "false"} | options
    if topics and not any(topic.startswith(LIGHT_PREFIX) for topic in topics):
        return read_stores(spark, (store,), _PARTS, topics=topics, **more)
    parts = read_stores(spark, (store,), f"{_PARTS}, isLight boolean", **more)
    return parts.where(parts["topic"].isin(list(topics))) if topics else parts


def _require_topics(
    spark: Any, config: Config, store: str, found: set[str], deletions: Deletions, report: Report
) -> None:
    """Notes wanted topics that have no record.

    Raises ConfigError: none has one; with the nearest name of those that have.
    """
    missing = sorted(set(config.topics) - found)
    if not missing:
        return
    columns = "topic string, isLight boolean"
    names = read_stores(spark, (store,), columns, view="parts", useConsumeQueue="false", onCorrupt="skip")
    known = sorted(row["topic"] for row in names.select("topic").distinct().collect())
    for topic in missing:
        text = f"no record in {store} is of the topic {topic!r}{hint(topic, known)}"
        if topic in deletions:
            text = f"no record in {store} is behind the deletion of the topic {topic!r} at {deletions[topic][-1]}"
        if not found:
            raise ConfigError(f"rebuild: {text}: nothing was made")
        report.problem(text, topic=topic)


def tell_batches(report: Report, written: list[Any]) -> None:
    """Note how many inner batches have units, and which cannot have one."""
    report.figures["inner_batches"] = sum(row["units"] for row in written)
    for topic in sorted({row["topic"] for row in written if row["units"] < row["innerBatches"]}):
        count = sum(row["innerBatches"] - row["units"] for row in written if row["topic"] == topic)
        report.problem(
            f"{count} inner batches have no unit: they are transactions, do not say how many messages they hold, or no "
            "queue may be called so",
            count=count,
            topic=topic,
        )


def _write_index(spark: Any, config: Config, store: str, root: str) -> list[Any]:
    """Write the index files; a row about each."""
    from pyspark.sql import functions as f

    columns = "physicalOffset bigint, sysFlag int, storeTimestamp timestamp, keyHashes array<int>"
    frame = read_stores(spark, (store,), columns, onCorrupt=config.on_corrupt)
    kind = f.col("sysFlag").bitwiseAND(f.lit(SysFlag.TRANSACTION_MASK))
    messages = frame.where((kind != SysFlag.TRANSACTION_ROLLBACK) & (f.size("keyHashes") > 0)).select(
        f.floor(f.col("physicalOffset") / INDEX_UNIT_BYTES).alias("unit"),
        "physicalOffset",
        f.unix_millis("storeTimestamp").alias("storeTimestamp"),
        "keyHashes",
    )
    counts = messages.groupBy("unit").agg(f.sum(f.size("keyHashes")).alias("keys")).collect()
    parts, files = divide(((row["unit"], row["keys"]) for row in counts), config.index_entries)
    if not parts:
        return []
    names = file_names(files, time.time_ns() // 1_000_000)
    slots, room = config.index_slots, config.index_entries

    def write(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return write_index_files(root, names, table, slots, room)

    known = rows_here(spark, list(parts.items()), "unit bigint, part int")
    joined = messages.join(f.broadcast(known), "unit").drop("unit")
    rows: list[Any] = joined.groupBy("part").applyInArrow(write, as_struct(WRITTEN)).collect()
    return rows


def _check_target(into: Path, store: str, config: Config) -> None:
    if not 1 <= config.index_slots <= 1 << 28 or not 2 <= config.index_entries <= 1 << 28:
        raise ConfigError(
            f"rebuild: index_slots is {config.index_slots} and index_entries {config.index_entries}: 1 and 2 at "
            f"least, {1 << 28} at most"
        )
    for name in ("entries_per_file", "batches_per_file"):
        if not 1 <= getattr(config, name) <= 10_000_000:
            raise ConfigError(f"rebuild: {name} is {getattr(config, name)}: 1 to 10000000 are allowed")
    if into.exists():
        raise ConfigError(f"{into}: exists: name a directory that does not, the queues are never changed in place")
    source = Path(store).resolve()
    if source == into or source in into.parents:
        raise ConfigError(f"{into}: lies in the store, which is only read: name a directory outside of it")


def write_part(root: str, table: pa.Table, per_file: int) -> pa.Table:
    """Write the queue file of a part of a queue, of the rows of ``table`` that have entries; a row about it.

    Without any, its ``last`` is below ``first``.
    """
    names = "topic", "queueId", "part"
    topic, queue_id, file = (table.column(name)[0].as_py() for name in names)
    row = {"topic": topic, "queueId": queue_id, "file": file, "entries": 0, "missing": 0, "duplicates": 0, "units": 0}
    row |= {"batches": b"", "first": 0, "last": -1, "innerBatches": pc.sum(table.column("innerBatches")).as_py()}
    named = table.filter(table.column("hasEntries"))
    if named.num_rows:
        row |= _write_queue_file(root, topic, queue_id, file, named, per_file)
    units = np.frombuffer(b"".join(table.column("batches").to_pylist()), BATCH_UNIT)
    if is_safe_topic(topic) and queue_id >= 0:
        row |= {"units": len(units), "batches": units[np.argsort(units["physical_offset"], kind="stable")].tobytes()}
    return pa.Table.from_pylist([row], arrow_schema(_WRITTEN))


def _write_queue_file(
    root: str, topic: str, queue_id: int, file: int, table: pa.Table, per_file: int
) -> dict[str, int]:
    """Write the entries of one file, all in ``table``, below ``root``; the columns that say what is in it.

    With a name or numbers that no queue file can have nothing is written, and there are 0 entries.
    """
    found = np.frombuffer(b"".join(table.column("entries").to_pylist()), PART_ENTRY)
    found = found[np.argsort(found["physical_offset"], kind="stable")]
    is_light = topic.startswith(LIGHT_PREFIX)
    # Of several the last one stays: there it is the log's first, as at brokers.
    found = found[::-1] if is_light else found
    offsets = found["queue_offset"]
    first, last = int(offsets.min()), int(offsets.max())
    if (
        not is_safe_topic(topic)
        or queue_id < 0
        or file < 0
        or first < file
        or last > min(file + per_file - 1, _QUEUE_OFFSET_MAX)
    ):
        return {"first": first, "last": last}
    places = offsets - file
    entries = np.zeros(per_file, ENTRY)
    used = np.zeros(per_file, np.bool_)
    used[places] = True
    # Before the queue's first message stand fillers, as a broker writes them; holes stay unused.
    entries["size"][: first - file] = FILLER_SIZE
    if is_light:  # RocketMQ skips offsets there
        entries["size"][first - file : last - file] = FILLER_SIZE
    for name in ("physical_offset", "size", "tags_code"):
        entries[name][places] = found[name]
    if topic == SCHEDULE_TOPIC:
        entries["tags_code"][places] = delivery_times(np.full(len(found), queue_id), found["store_timestamp"])
    folder = Path(root) / CONSUME_QUEUE / topic / str(queue_id)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file_name(file * ENTRY_BYTES)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_bytes(entries.tobytes())
    draft.replace(target)  # a task may run twice
    count = int(used.sum())
    duplicates, missing = len(offsets) - count, last - first + 1 - count
    return {"entries": count, "missing": missing, "duplicates": duplicates, "first": first, "last": last}


def _summarize(report: Report, written: list[Any], deletions: Deletions) -> None:
    made = [row for row in written if row["first"] <= row["last"]]
    rows = sorted(made, key=lambda row: (row["topic"], row["queueId"], row["file"]))
    files = [row for row in rows if row["entries"]]
    report.figures |= {
        "queues": len({(row["topic"], row["queueId"]) for row in files}),
        "files": len(files),
        "entries": sum(row["entries"] for row in rows),
    }
    before: dict[tuple[str, int], Any] = {}
    for row in rows:
        queue = row["topic"], row["queueId"]
        where = {"topic": queue[0], "queue": queue[1]}
        if not row["entries"]:
            offsets = f"the offsets {row['first']} to {row['last']}"
            reason = "can hold" if is_safe_topic(queue[0]) else "may be called so as to hold"
            report.problem(f"no queue file {reason} {offsets}", **where)
            continue
        former = before.get(queue)
        if former is None and row["first"] and queue[0] in deletions:
            report.problem(f"offsets 0 to {row['first'] - 1} are not in the log behind the topic's deletion", **where)
        if former is not None and row["first"] != former["last"] + 1:
            report.problem(f"offsets {former['last'] + 1} to {row['first'] - 1} are not in the log", **where)
        if row["missing"]:
            text = f"{row['missing']} offsets between {row['first']} and {row['last']} are not in the log"
            report.problem(text, **where)
        if row["duplicates"]:
            text = f"{row['duplicates']} offsets from {row['first']} to {row['last']} are in the log twice"
            report.problem(text, **where)
        before[queue] = row
    shown = [[row[name] for name in ("topic", "queueId", "file", "entries", "first", "last")] for row in rows]
    report.tables.append(Table("Queue files", ["topic", "queue", "file", "entries", "first", "last"], shown))
