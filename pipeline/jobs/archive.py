"""Log files of stores into a lake (:mod:`penstock.pipeline.lake`): sorted, compressed, each exactly once.

A file with a manifest is skipped, one without is written whole; so the job may be killed and repeated at any time.
Only sealed files, unless ``tail`` is set: then the last file's present content too, replaced by the next run.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.proto.errors import ConfigError

from ..arrow_types import arrow_schema
from ..lake import Lake, Manifest, folder_name, watermark
from ..lake_files import COLUMNS, write_sorted
from ..schema import STORE_COLUMNS, as_struct
from ..stores.directory import list_store
from ..stores.files import FileReader, expand_roots, open_file_system
from ..stores.model import LogFile, Store
from ..stores.options import StoreOptions
from ..stores.planning import Split, plan_splits
from ..workers import keep_loaded
from .config import setting
from .reading import one_task_each
from .report import Plot, Report, Table

log = logging.getLogger(__name__)

STAGED_S = 86_400
"""No job works on a few log files for so long."""
_READ_BYTES = 8 << 20


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
    archive_name: str = setting("what the brokers call this archive", "lake")
    segments_per_commit: int = setting("log files written before their manifests", 4)


def run(spark: Any, config: Config) -> Report:
    """Archive what is missing, or check what is there. The figures hold the watermark of each broker."""
    if config.on_corrupt not in ("fail", "skip"):
        raise ConfigError(f"archive: on_corrupt is {config.on_corrupt!r}: fail or skip")
    if config.up_to not in ("confirm", "end"):
        raise ConfigError(f"archive: up_to is {config.up_to!r}: confirm or end")
    report = Report("archive", asdict(config))
    lake = Lake(config.lake)
    require_kind(lake, of_topics=False)
    roots = expand_roots(config.store)
    names = config.broker_name or ("",) * len(roots)
    stores = [list_store(root, name, up_to=config.up_to) for root, name in zip(roots, names, strict=True)]
    if config.namesrv is not None:
        _require_groups(config.namesrv, [store.broker_name for store in stores])
    if config.check:
        lake.require()
        for store in stores:
            _check(spark, report, lake, store)
        return report.finish()
    rows: list[list[Any]] = []
    for store in stores:
        done = {one.segment: one for one in lake.manifests() if one.broker == store.broker_name}
        pending = [file for file in store.files if _is_pending(file, done.get(file.start), tail=config.tail)]
        for run_of_files in _runs(pending, config.segments_per_commit):
            for manifest in _archive(spark, lake, store, run_of_files, config.on_corrupt):
                rows.append(
                    [manifest.broker, manifest.segment, manifest.rows, manifest.recordBytes, len(manifest.files)]
                )
        report.figures.setdefault("skipped_segments", 0)
        report.figures["skipped_segments"] += len(store.files) - len(pending)
    manifests = lake.manifests()
    marks = {
        store.broker_name: watermark(manifests, store.broker_name, store.files[0].start if store.files else 0)
        for store in stores
    }
    if config.namesrv is not None:
        set_watermarks(config.namesrv, config.archive_name, marks)
    report.finish()
    archived = sum(row[3] for row in rows)
    report.figures |= {
        "segments": len(rows),
        "rows": sum(row[2] for row in rows),
        "record_bytes": archived,
        "mb_per_s": round(archived / 1e6 / max(report.seconds, 1e-3), 1),
        "watermarks": marks,
    }
    report.tables.append(Table("Archived", ["broker", "segment", "rows", "bytes", "files"], rows))
    bars = {"rows": [float(row[2]) for row in rows]}
    report.plots.append(Plot("Rows per log file", "bars", [f"{row[0]} {row[1]}" for row in rows], bars))
    return report


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


def _require_groups(namesrv: str, names: list[str]) -> None:
    """Nothing, if the cluster has these broker groups: told before hours of work, not after.

    Raises:
        ConfigError: one is missing.
        NameserverUnavailable: no nameserver answers.
    """
    from penstock.client.connections import Connections
    from penstock.client.shards import ShardCalls

    connections = Connections(namesrv)
    try:
        known = sorted(ShardCalls(connections).shards())
    finally:
        connections.close()
    for name in names:
        if name not in known:
            raise ConfigError(
                f"archive: the cluster at {namesrv} has the broker groups {', '.join(known)}, and no {name!r}: "
                "set broker_name to the group's name of each store, in order"
            )


def set_watermarks(namesrv: str, archive_name: str, marks: dict[str, int]) -> None:
    """Tell each group's master up to where its log is archived."""
    from penstock.client.connections import Connections
    from penstock.client.shards import ShardCalls

    connections = Connections(namesrv)
    try:
        calls = ShardCalls(connections)
        for broker_name, offset in marks.items():
            calls.set_archive_watermark(broker_name, archive_name, offset)
    finally:
        connections.close()


def _is_pending(file: LogFile, manifest: Manifest | None, *, tail: bool) -> bool:
    if not file.end or not (file.is_sealed or tail):  # an empty file stays a gap
        return False
    return manifest is None or manifest.endPhysicalOffset < file.start + file.end or manifest.sealed != file.is_sealed


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


def _archive(spark: Any, lake: Lake, store: Store, files: list[LogFile], on_corrupt: str) -> list[Manifest]:
    """Write the Parquet files of some log files beside the lake's, move them into it, then commit the manifests."""
    with staging(lake) as folder:
        written = _write(spark, lake, store, files, folder, on_corrupt)
        checksums = _checksums(spark, store, files)
        made = []
        for file in files:
            own = pc.and_(
                pc.greater_equal(written["start"], file.start), pc.less(written["start"], file.start + file.size)
            )
            manifest = _manifest(lake, store, file, written.filter(own))
            manifest = replace(
                manifest, crc32=checksums[file.start], damages=_damages(store, file, manifest, on_corrupt)
            )
            made.append(manifest)
        replaced = {one.segment: one for one in lake.manifests() if one.broker == store.broker_name}
        for manifest in made:
            lake.commit(manifest)
            if manifest.segment in replaced:
                lake.delete(name for name, _ in replaced[manifest.segment].files)
        return made


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
    from ..stores.messages import read_split  # loads kernels

    keep_loaded()
    yield from write_sorted(read_split(split, options, arrow_schema(STORE_COLUMNS)), lake, folder)


def _checksums(spark: Any, store: Store, files: list[LogFile]) -> dict[int, int]:
    """CRC-32 of each log file up to its end, one task each."""
    root = store.root

    def checksum(file: LogFile) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"start": [file.start], "crc": [file_checksum(root, file)]})

    rows = one_task_each(spark, files, checksum, "start bigint, crc bigint").collect()
    return {row["start"]: row["crc"] for row in rows}


def file_checksum(root: str, file: LogFile) -> int:
    """CRC-32 of the first ``end`` bytes of a log file."""
    from zlib import crc32

    file_system, _ = open_file_system(root)
    found = 0
    with FileReader(file_system, file.path) as reader:
        for at in range(0, file.end, _READ_BYTES):
            found = crc32(reader.read(at, min(_READ_BYTES, file.end - at)).data, found)
    return found


def move_in(lake: Lake, written: pa.Table, number: int) -> tuple[tuple[str, int], ...]:
    """Give files of one broker their names in the lake, of which ``number`` is a part; these, and their bytes."""
    run = uuid.uuid4().hex[:8]
    moved = []
    files = written.group_by(["day", "broker", "path", "file_bytes"]).aggregate([]).to_pylist()
    for part, file in enumerate(sorted(files, key=lambda file: (file["day"], file["path"]))):
        folder = f"messages/dt={file['day']}/broker={folder_name(file['broker'])}"
        name = f"{folder}/{number:020d}-{part:05d}-{run}.parquet"
        lake.move(file["path"], name)
        moved.append((name, int(file["file_bytes"])))
    return tuple(moved)


def totals(written: pa.Table) -> dict[str, Any]:
    """Fields of a manifest: what these files hold together."""
    sums = [("rows", "sum"), ("first_offset", "min"), ("last_offset", "max")]
    queues = written.group_by(["topic", "queue_id"]).aggregate(sums).select(["topic", "queue_id", *map("_".join, sums)])
    return {
        "rows": pc.sum(written["rows"]).as_py() or 0,
        "recordBytes": pc.sum(written["record_bytes"]).as_py() or 0,
        "firstStoreTimestamp": pc.min(written["first_time"]).as_py(),
        "lastStoreTimestamp": pc.max(written["last_time"]).as_py(),
        "queues": tuple(sorted(tuple(queue.values()) for queue in queues.to_pylist())),
    }


def _manifest(lake: Lake, store: Store, file: LogFile, written: pa.Table) -> Manifest:
    return Manifest(
        broker=store.broker_name,
        segment=file.start,
        startPhysicalOffset=file.start,
        endPhysicalOffset=file.start + file.end,
        fileBytes=file.size,
        sealed=file.is_sealed,
        damages=0,
        crc32=0,
        files=move_in(lake, written, file.start),
        archivedAt=time.time_ns() // 1_000_000,
        **totals(written),
    )


def _damages(store: Store, file: LogFile, manifest: Manifest, on_corrupt: str) -> int:
    """How many damages were passed over: counted only where the record bytes do not fill the file."""
    if on_corrupt == "fail":
        return 0
    from ..stores.model import Damage
    from ..stores.scanning import FileScan

    file_system, _ = open_file_system(store.root)
    with FileReader(file_system, file.path) as reader:
        scan = FileScan(reader, file.start, file.end, check_crc=True, needs_blank=file.is_sealed)
        return sum(isinstance(piece, Damage) for piece in scan.read(0, file.end))


def _check(spark: Any, report: Report, lake: Lake, store: Store) -> None:
    """Whether the lake holds what the store does: bytes by checksum, rows by number."""
    manifests = {one.segment: one for one in lake.manifests() if one.broker == store.broker_name}
    files = [file for file in store.files if file.start in manifests]
    missing = [file.start for file in store.files if file.is_sealed and file.start not in manifests]
    for start in missing:
        report.problem("the log file is not archived", broker=store.broker_name, segment=start)
    cut = [replace(file, end=min(file.end, manifests[file.start].endPhysicalOffset - file.start)) for file in files]
    checksums = _checksums(spark, store, cut) if cut else {}
    for file in cut:
        manifest = manifests[file.start]
        if checksums[file.start] != manifest.crc32:
            report.problem(
                f"the log file has the checksum {checksums[file.start]:#010x}, its manifest {manifest.crc32:#010x}",
                broker=store.broker_name,
                segment=file.start,
            )
    checked = [manifests[file.start] for file in cut]
    counted = _rows_in_lake(spark, lake, checked)
    for manifest in checked:
        found = counted.get(manifest.segment, 0)
        if found != manifest.rows:
            text = f"the lake holds {found} messages, the manifest says {manifest.rows}"
            report.problem(text, broker=store.broker_name, segment=manifest.segment)
    report.figures["checked_segments"] = report.figures.get("checked_segments", 0) + len(checked)


def _rows_in_lake(spark: Any, lake: Lake, manifests: list[Manifest]) -> dict[int, int]:
    from pyspark.sql import functions as f

    paths = lake.paths_of(manifests)
    if not paths:
        return {}
    name = f.regexp_extract(f.input_file_name(), r"/(\d{20})-\d+-[0-9a-f]+\.parquet", 1)
    rows = spark.read.parquet(*paths).groupBy(name.cast("bigint").alias("segment")).count().collect()
    return {row["segment"]: row["count"] for row in rows}
