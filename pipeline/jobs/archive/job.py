"""Log files of stores into a lake: sorted, compressed, each exactly once.

The lake is a Delta table. A log file that the table has is skipped; one that it has not is written whole, and added by
one commit. So the job may be killed and repeated at any time, and run beside itself. Only sealed files, unless ``tail``
is set: then the last file's present content too, replaced by the next run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError, StorageError

from ...columns.schema import CORRUPT_COLUMN, STORE_COLUMNS, as_struct
from ...lake.entries import Entry, LakeFile, reach, watermark
from ...lake.lake import Lake
from ...lake.lake_files import COLUMNS, write_sorted
from ...options import setting
from ...spark.arrow_types import arrow_schema
from ...spark.workers import keep_loaded
from ...stores.directory import epochs_of, list_stores, require_names
from ...stores.files import open_file_system
from ...stores.model import LogFile, Store
from ...stores.options import StoreOptions
from ...stores.scan.planning import Split, plan_splits
from ...stores.scan.segments import read_segment
from ..framework.reading import one_task_each
from ..framework.report import Report, Table
from .check import check_lake
from .logs import checksums_of, epochs_within, ranges_of, report_holes, require_same_logs, sample
from .marks import archive_marks, require_forward, require_groups, set_watermarks

log = logging.getLogger(__name__)

KEPT_HOURS = 24
"""So long stay files that are in no commit, or left the table: no job works on a few log files for so long, and few
queries read for so long; those that do are told that a file was replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to archive, and where."""

    store: tuple[str, ...] = setting("store directories, patterns or URIs, separated by commas")
    lake: str = setting("the lake's directory or URI")
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    tail: bool = setting("the last, growing log file too", False)
    up_to: str = setting("of a store in use: confirm, as of its last checkpoint, or end", "confirm")
    check: bool = setting("archive nothing: compare the lake with the store", False)
    on_corrupt: str = setting("what to do about damaged bytes: fail or skip (counted)", "fail")
    namesrv: str | None = setting("nameservers of the cluster, whose retention is to wait for this archive", None)
    archive_name: str | None = setting(
        "what the brokers call this archive  [archive- and 8 digits made of the lake's path: each lake has its own]",
        None,
    )
    segments_per_commit: int = setting("log files that are added by one commit", 4)


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    if config.on_corrupt not in ("fail", "skip"):
        raise ConfigError(f"archive: on_corrupt is {config.on_corrupt!r}: fail or skip")
    if config.up_to not in ("confirm", "end"):
        raise ConfigError(f"archive: up_to is {config.up_to!r}: confirm or end")
    if config.segments_per_commit < 1:
        raise ConfigError(f"archive: segments_per_commit is {config.segments_per_commit}: 1 or more log files")
    require_names("archive", config.store, config.broker_name)


@dataclass(frozen=True, slots=True)
class _Job:
    """What the steps of one run share."""

    spark: Any
    config: Config
    report: Report
    lake: Lake
    made: list[Entry] = field(default_factory=list)
    unreadable: list[list[Any]] = field(default_factory=list)


def run(spark: Any, config: Config) -> Report:
    """Archive what is missing, or check what is there. The figures hold the watermark of each broker.

    The report fails where neither a store nor the lake has bytes of its log.
    Raises ConfigError: an option is wrong, the lake holds another log under the name of one of these stores, or a
    broker holds a mark of this name beyond what the lake will have.
    """
    check(config)
    report = Report("archive", asdict(config))
    lake = Lake(config.lake)
    require_kind(lake, of_topics=False)
    stores = list_stores("archive", config.store, config.broker_name, config.up_to)
    if config.namesrv is not None:
        require_groups(config.namesrv, [store.broker_name for store in stores])
    if config.check:
        lake.require()
        for store in stores:
            check_lake(spark, report, lake, store)
        return report.finish()
    entries = lake.entries()
    for store in stores:  # all of them before anything is written
        require_same_logs(lake, store)
    pending = {store.broker_name: _pending(store, entries, tail=config.tail) for store in stores}
    name = config.archive_name or lake.mark_name("archive")
    if config.namesrv is not None:
        due = {store.broker_name: _due(store, entries, pending[store.broker_name]) for store in stores}
        marks = archive_marks(config.namesrv, due)
        require_forward(lake, name, due, marks)
        report.figures["archive_name"] = name
    lake.vacuum(KEPT_HOURS)
    job = _Job(spark, config, report, lake)
    for store in stores:
        _archive_store(job, store, pending[store.broker_name])
    entries = lake.entries()
    for store in stores:
        report_holes(report, store, entries, store.files[0].start)
    reached = {store.broker_name: watermark(entries, store.broker_name, store.files[0].start) for store in stores}
    if config.namesrv is not None:
        lake.sync_log()  # others' commits count too
        set_watermarks(config.namesrv, name, reached)
    report.finish()
    skipped = sum(len(store.files) - len(pending[store.broker_name]) for store in stores)
    report.figures |= {"skipped_segments": skipped, "watermarks": reached}
    _tell(job)
    return report


def _tell(job: _Job) -> None:
    report, made = job.report, job.made
    report.figures |= {"segments": len(made), **figures_of(made, report.seconds)}
    lines = [[one.broker, one.segment, one.rows, one.recordBytes, len(one.files), one.damages] for one in made]
    report.tables.append(Table("Archived", ["broker", "segment", "rows", "bytes", "files", "damages"], lines))
    if job.unreadable:
        columns = ["broker", "segment", "topic", "queue", "messages"]
        report.tables.append(Table("Bodies kept as stored: they cannot be decompressed", columns, job.unreadable))
    bars = {"rows": [float(one.rows) for one in made]}
    report.plots.append(Plot("Rows per log file", "bars", [f"{one.broker} {one.segment}" for one in made], bars))


def figures_of(made: list[Entry], seconds: float) -> dict[str, Any]:
    """What a report says of what was added to the lake in so many seconds."""
    size = sum(one.recordBytes for one in made)
    return {
        "rows": sum(one.rows for one in made),
        "record_bytes": size,
        "damages": sum(one.damages for one in made),
        "mb_per_s": round(size / 1e6 / max(seconds, 1e-3), 1),
    }


def require_kind(lake: Lake, *, of_topics: bool) -> None:
    """Raises ConfigError if the lake is of the other kind: the two know by different numbers what they hold."""
    kinds = {entry.of_topics for entry in lake.entries()}
    if kinds - {of_topics}:
        raise ConfigError(
            f"{lake.root}: this lake is filled by the job {'archive' if of_topics else 'archive-topic'}: name another"
        )


def _due(store: Store, entries: list[Entry], pending: list[LogFile]) -> int:
    """The watermark of the store's log when these are archived too."""
    return reach(ranges_of(store.broker_name, entries, pending), store.files[0].start)


def _pending(store: Store, entries: list[Entry], *, tail: bool) -> list[LogFile]:
    held = {one.segment: one for one in entries if one.broker == store.broker_name}
    return [file for file in store.files if _is_pending(file, held.get(file.start), tail=tail)]


def _is_pending(file: LogFile, entry: Entry | None, *, tail: bool) -> bool:
    """True if the store has more of the file than the lake: a replica that follows may have less."""
    if not file.end or not (file.is_sealed or tail):  # an empty file stays a gap
        return False
    if entry is None:
        return True
    end, held = file.start + file.end, entry.endPhysicalOffset
    return end >= held and file.is_sealed >= entry.sealed and (end, file.is_sealed) != (held, entry.sealed)


def _runs(files: list[LogFile], count_max: int) -> Iterator[list[LogFile]]:
    """Neighbouring files, at most so many together."""
    run: list[LogFile] = []
    for file in files:
        if run and (len(run) >= count_max or file.start != run[-1].start + run[-1].size):
            yield run
            run = []
        run.append(file)
    if run:
        yield run


def _archive_store(job: _Job, store: Store, pending: list[LogFile]) -> None:
    epochs = epochs_of(store)
    for files in _runs(pending, job.config.segments_per_commit):
        left = _still_there(job, store, files)
        while left:
            try:
                _archive(job, store, left, epochs)
                break
            except Exception:  # Spark's own, around ours
                tried, left = left, _still_there(job, store, left)
                if left == tried:
                    raise


def _still_there(job: _Job, store: Store, files: list[LogFile]) -> list[LogFile]:
    """Those of the files that are not deleted; the report is told of deleted ones that are not archived."""
    file_system, _ = open_file_system(store.root)
    there = []
    for file, info in zip(files, file_system.get_file_info([file.path for file in files]), strict=True):
        if info.type != fs.FileType.NotFound:
            there.append(file)
            continue
        held = next((one for one in job.lake.entries() if one.place == (store.broker_name, file.start)), None)
        if held is None or held.endPhysicalOffset < file.start + file.end:
            text = f"{file.path}: deleted before it was archived: archive a replica that has it"
            job.report.problem(text, broker=store.broker_name, segment=file.start)
    return there


def _archive(job: _Job, store: Store, files: list[LogFile], epochs: tuple[tuple[int, int], ...] | None) -> None:
    """Write the Parquet files of some log files, then add them to the table."""
    lake, on_corrupt = job.lake, job.config.on_corrupt
    written = _write(job.spark, lake, store, files, on_corrupt)
    checksums = checksums_of(job.spark, store, files)
    made: dict[Entry, pa.Table] = {}
    for file in files:
        if file.start not in checksums:
            raise StorageError(f"{file.path}: deleted while it was archived: run the job again")
        head, tail = sample(store.root, file, file.end)
        within = pc.and_(
            pc.greater_equal(written["start"], file.start), pc.less(written["start"], file.start + file.size)
        )
        own = written.filter(within)
        entry = Entry(
            broker=store.broker_name,
            segment=file.start,
            startPhysicalOffset=file.start,
            endPhysicalOffset=file.start + file.end,
            fileBytes=file.size,
            sealed=file.is_sealed,
            crc32=checksums[file.start],
            damages=_damages(store, file, own, on_corrupt),
            headCrc32=head,
            tailCrc32=tail,
            epochs=epochs_within(epochs, file.start, file.start + file.end),
            **contents(own),
        )
        made[entry] = own
    job.made.extend(add(lake, made))
    for entry in made.keys() & set(job.made):
        job.unreadable.extend([*entry.place, *line] for line in _unreadable(made[entry]))


def add(lake: Lake, made: Mapping[Entry, pa.Table]) -> list[Entry]:
    """Add these to the lake's table; those that it took. Files of the others, which another job has added, go."""
    statistics = {
        file["name"]: file["statistics"]
        for own in made.values()
        for file in own.select(["name", "statistics"]).to_pylist()
    }
    taken = lake.commit(list(made), statistics)
    for entry in made:
        if entry not in taken:
            log.warning("left to another job, which has archived as much lake=%s of=%s", lake.root, entry)
            lake.delete(file.name for file in entry.files)
    return taken


def _unreadable(written: pa.Table) -> list[tuple[Any, ...]]:
    """Topic, queue, and how many messages of it have bodies that cannot be decompressed."""
    bad = written.filter(pc.greater(written["unreadable"], 0)).group_by(["topic", "queue_id"])
    sums = bad.aggregate([("unreadable", "sum")]).select(["topic", "queue_id", "unreadable_sum"])
    return sorted(tuple(row.values()) for row in sums.to_pylist())


def _write(spark: Any, lake: Lake, store: Store, files: list[LogFile], on_corrupt: str) -> pa.Table:
    """Write the messages of neighbouring log files; what the Parquet files hold (:mod:`..lake_files`).

    A split is read, sorted and written where its task runs: nothing else passes through Spark.
    """
    options = StoreOptions(roots=(store.root,), on_corrupt=on_corrupt)
    splits = list(plan_splits(replace(store, files=tuple(files), gaps=()), options))
    root = lake.root

    def write(split: Split) -> Iterator[pa.RecordBatch]:
        return _write_split(split, options, Lake(root))

    return one_task_each(spark, splits, write, as_struct(COLUMNS)).toArrow()


def _write_split(split: Split, options: StoreOptions, lake: Lake) -> Iterator[pa.RecordBatch]:
    from ...stores.scan.messages import read_split  # loads kernels

    keep_loaded()
    columns = STORE_COLUMNS | CORRUPT_COLUMN if options.on_corrupt == "skip" else STORE_COLUMNS
    # The log file may go, the lake stays.
    yield from write_sorted(read_split(split, options, arrow_schema(columns), keeps_bad_bodies=True), lake)


def contents(written: pa.Table) -> dict[str, Any]:
    """An entry's fields about the files that are written of it."""
    files = written.group_by(["name", "file_bytes", "file_crc32"]).aggregate([]).to_pylist()
    sums = [("rows", "sum"), ("first_offset", "min"), ("last_offset", "max")]
    queues = written.group_by(["topic", "queue_id"]).aggregate(sums).select(["topic", "queue_id", *map("_".join, sums)])
    return {
        "files": tuple(sorted(LakeFile(*file.values()) for file in files)),
        "archivedAt": time.time_ns() // 1_000_000,
        "rows": pc.sum(written["rows"]).as_py() or 0,
        "recordBytes": pc.sum(written["record_bytes"]).as_py() or 0,
        "firstStoreTimestamp": pc.min(written["first_time"]).as_py(),
        "lastStoreTimestamp": pc.max(written["last_time"]).as_py(),
        "queues": tuple(sorted(tuple(queue.values()) for queue in queues.to_pylist())),
    }


def _damages(store: Store, file: LogFile, written: pa.Table, on_corrupt: str) -> int:
    """How many damages were passed over, and bodies kept as they were stored."""
    if on_corrupt == "fail":
        return 0
    segment = Split(store.root, store.broker_name, file, 0, file.end)
    (row,) = read_segment(segment, store.tail, arrow_schema({"damages": "int"}))
    return int(row["damages"][0].as_py()) + (pc.sum(written["unreadable"]).as_py() or 0)
