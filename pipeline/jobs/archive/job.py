"""Log files of stores into a lake: sorted, compressed, each exactly once.

A file with a manifest is skipped, one without is written whole; so the job may be killed and repeated at any time.
Only sealed files, unless ``tail`` is set: then the last file's present content too, replaced by the next run.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError, StorageError

from ...columns.schema import CORRUPT_COLUMN, STORE_COLUMNS, as_struct
from ...lake.lake import Lake, Manifest, folder_name, manifest_name, reach, watermark
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
from .logs import (
    checksums_of,
    epochs_within,
    ranges_of,
    report_holes,
    require_same_logs,
    sample,
)
from .marks import archive_marks, require_forward, require_groups, set_watermarks

log = logging.getLogger(__name__)

STAGED_S = 86_400
"""No job works on a few log files for so long."""
REPLACED_S = 6 * 3600
"""Few queries read for so long; those that do are told that a file was replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to archive, and where."""

    store: tuple[str, ...] = setting("store directories, patterns or URIs, separated by commas")
    lake: str = setting("the lake's directory or URI")
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    tail: bool = setting("the last, growing log file too", False)
    up_to: str = setting("of a store in use: confirm, as of its last checkpoint, or end", "confirm")
    check: bool = setting("archive nothing: compare the lake with the store", False)
    on_corrupt: str = setting("what to do about damaged bytes: fail or skip (counted in the manifest)", "fail")
    namesrv: str | None = setting("nameservers of the cluster, whose retention is to wait for this archive", None)
    archive_name: str | None = setting(
        "what the brokers call this archive  [archive- and 8 digits made of the lake's path: each lake has its own]",
        None,
    )
    segments_per_commit: int = setting("log files written before their manifests", 4)


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
    made: list[Manifest] = field(default_factory=list)
    unreadable: list[list[Any]] = field(default_factory=list)


def run(spark: Any, config: Config) -> Report:
    """Archive what is missing, or check what is there. The figures hold the watermark of each broker.

    The report fails where neither a store nor the lake has bytes of its log.

    Raises:
        ConfigError: an option is wrong, the lake holds another log under the name of one of these stores, or a broker
            holds a mark of this name beyond what the lake will have.
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
    for store in stores:  # all of them before anything is written
        require_same_logs(lake, store)
    manifests = lake.manifests()
    pending = {store.broker_name: _pending(store, manifests, tail=config.tail) for store in stores}
    name = config.archive_name or lake.mark_name("archive")
    if config.namesrv is not None:
        due = {store.broker_name: _due(store, manifests, pending[store.broker_name]) for store in stores}
        marks = archive_marks(config.namesrv, due)
        require_forward(lake, name, due, marks)
        report.figures["archive_name"] = name
    lake.sweep_replaced(REPLACED_S)
    job = _Job(spark, config, report, lake)
    for store in stores:
        _archive_store(job, store, pending[store.broker_name])
    manifests = lake.manifests()
    for store in stores:
        report_holes(report, store, manifests, store.files[0].start)
    reached = {store.broker_name: watermark(manifests, store.broker_name, store.files[0].start) for store in stores}
    if config.namesrv is not None:
        set_watermarks(config.namesrv, name, reached)
    report.finish()
    skipped = sum(len(store.files) - len(pending[store.broker_name]) for store in stores)
    report.figures |= {"skipped_segments": skipped, "watermarks": reached}
    _tell(job)
    return report


def _tell(job: _Job) -> None:
    report, made = job.report, job.made
    size = sum(one.recordBytes for one in made)
    report.figures |= {
        "segments": len(made),
        "rows": sum(one.rows for one in made),
        "record_bytes": size,
        "damages": sum(one.damages for one in made),
        "mb_per_s": round(size / 1e6 / max(report.seconds, 1e-3), 1),
    }
    lines = [[one.broker, one.segment, one.rows, one.recordBytes, len(one.files), one.damages] for one in made]
    report.tables.append(Table("Archived", ["broker", "segment", "rows", "bytes", "files", "damages"], lines))
    if job.unreadable:
        columns = ["broker", "segment", "topic", "queue", "messages"]
        report.tables.append(Table("Bodies kept as stored: they cannot be decompressed", columns, job.unreadable))
    bars = {"rows": [float(one.rows) for one in made]}
    report.plots.append(Plot("Rows per log file", "bars", [f"{one.broker} {one.segment}" for one in made], bars))


def require_kind(lake: Lake, *, of_topics: bool) -> None:
    """Nothing, if the lake is empty or of this kind: the two know by different numbers what they hold.

    Raises:
        ConfigError: it is the other kind's.
    """
    kinds = {manifest.of_topics for manifest in lake.manifests()}
    if kinds - {of_topics}:
        raise ConfigError(
            f"{lake.root}: this lake is filled by the job {'archive' if of_topics else 'archive-topic'}: name another"
        )


def _due(store: Store, manifests: list[Manifest], pending: list[LogFile]) -> int:
    """The watermark of the store's log when these are archived too."""
    return reach(ranges_of(store.broker_name, manifests, pending), store.files[0].start)


def _pending(store: Store, manifests: list[Manifest], *, tail: bool) -> list[LogFile]:
    held = {one.segment: one for one in manifests if one.broker == store.broker_name}
    return [file for file in store.files if _is_pending(file, held.get(file.start), tail=tail)]


def _is_pending(file: LogFile, manifest: Manifest | None, *, tail: bool) -> bool:
    """True if the store has more of the file than the lake: a replica that follows may have less."""
    if not file.end or not (file.is_sealed or tail):  # an empty file stays a gap
        return False
    if manifest is None:
        return True
    end, held = file.start + file.end, manifest.endPhysicalOffset
    return end >= held and file.is_sealed >= manifest.sealed and (end, file.is_sealed) != (held, manifest.sealed)


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
        held = job.lake.standing(manifest_name(store.broker_name, file.start))
        if held is None or held.endPhysicalOffset < file.start + file.end:
            where: dict[str, Any] = {"broker": store.broker_name, "segment": file.start}
            job.report.problem(f"{file.path}: deleted before it was archived: archive a replica that has it", **where)
    return there


def _archive(job: _Job, store: Store, files: list[LogFile], epochs: tuple[tuple[int, int], ...] | None) -> None:
    """Write the Parquet files of some log files beside the lake's, move them into it, then commit the manifests."""
    lake, on_corrupt = job.lake, job.config.on_corrupt
    with staging(lake) as folder:
        written = _write(job.spark, lake, store, files, folder, on_corrupt)
        checksums = checksums_of(job.spark, store, files)
        made = []
        for file in files:
            if file.start not in checksums:
                raise StorageError(f"{file.path}: deleted while it was archived: run the job again")
            head, tail = sample(store.root, file, file.end)
            within = pc.and_(
                pc.greater_equal(written["start"], file.start), pc.less(written["start"], file.start + file.size)
            )
            own = written.filter(within)
            manifest = Manifest(
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
                **moved_in(lake, own, file.start),
            )
            made.append((manifest, own))
        for manifest, own in made:
            if lake.commit(manifest):
                job.made.append(manifest)
                job.unreadable.extend([manifest.broker, manifest.segment, *line] for line in _unreadable(own))
            else:
                lake.delete(name for name, _ in manifest.files)
                log.warning("log file left to another job, which has archived as much path=%s", manifest.name)


def _unreadable(written: pa.Table) -> list[tuple[Any, ...]]:
    """Topic, queue, and how many messages of it have bodies that cannot be decompressed."""
    bad = written.filter(pc.greater(written["unreadable"], 0)).group_by(["topic", "queue_id"])
    sums = bad.aggregate([("unreadable", "sum")]).select(["topic", "queue_id", "unreadable_sum"])
    return sorted(tuple(row.values()) for row in sums.to_pylist())


@contextlib.contextmanager
def staging(lake: Lake) -> Iterator[str]:
    """A new folder of the lake for files that do not count yet; what is left in it at the end is removed.

    So are those of jobs that were killed, a day later.
    """
    lake.sweep("_staging", STAGED_S)
    folder = f"_staging/{uuid.uuid4().hex[:8]}"
    lake.files.create_dir(f"{lake.path}/{folder}", recursive=True)
    try:
        yield folder
    finally:
        try:
            lake.files.delete_dir(f"{lake.path}/{folder}")
        except OSError as error:  # a task that goes on after another's failure
            log.warning("files that do not count are left folder=%s error=%s", f"{lake.root}/{folder}", error)


def _write(spark: Any, lake: Lake, store: Store, files: list[LogFile], folder: str, on_corrupt: str) -> pa.Table:
    """Write the messages of neighbouring log files to ``folder``; what the files hold (:mod:`..lake_files`).

    A split is read, sorted and written where its task runs: nothing else passes through Spark.
    """
    options = StoreOptions(roots=(store.root,), on_corrupt=on_corrupt)
    splits = list(plan_splits(replace(store, files=tuple(files), gaps=()), options))
    root = lake.root

    def write(split: Split) -> Iterator[pa.RecordBatch]:
        return _write_split(split, options, Lake(root), folder)

    return one_task_each(spark, splits, write, as_struct(COLUMNS)).toArrow()


def _write_split(split: Split, options: StoreOptions, lake: Lake, folder: str) -> Iterator[pa.RecordBatch]:
    from ...stores.scan.messages import read_split  # loads kernels

    keep_loaded()
    columns = STORE_COLUMNS | CORRUPT_COLUMN if options.on_corrupt == "skip" else STORE_COLUMNS
    # The log file may go, the lake stays.
    yield from write_sorted(read_split(split, options, arrow_schema(columns), keeps_bad_bodies=True), lake, folder)


def moved_in(lake: Lake, written: pa.Table, number: int) -> dict[str, Any]:
    """Give files of one broker their names in the lake, with ``number`` as a part; a manifest's fields about them."""
    run = uuid.uuid4().hex[:8]
    moved: list[tuple[str, int]] = []
    checksums: list[int] = []
    files = written.group_by(["day", "broker", "path", "file_bytes", "file_crc32"]).aggregate([]).to_pylist()
    for part, file in enumerate(sorted(files, key=lambda file: (file["day"], file["path"]))):
        folder = f"messages/dt={file['day']}/broker={folder_name(file['broker'])}"
        name = f"{folder}/{number:020d}-{part:05d}-{run}.parquet"
        lake.move(file["path"], name)
        moved.append((name, int(file["file_bytes"])))
        checksums.append(int(file["file_crc32"]))
    sums = [("rows", "sum"), ("first_offset", "min"), ("last_offset", "max")]
    queues = written.group_by(["topic", "queue_id"]).aggregate(sums).select(["topic", "queue_id", *map("_".join, sums)])
    return {
        "files": tuple(moved),
        "fileCrc32": tuple(checksums),
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
