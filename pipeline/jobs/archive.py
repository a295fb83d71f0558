"""Log files of stores into a lake (:mod:`penstock.pipeline.lake`): sorted, compressed, each exactly once.

A file with a manifest is skipped, one without is written whole; so the job may be killed and repeated at any time.
Only sealed files, unless ``tail`` is set: then the last file's present content too, replaced by the next run.
Parquet: zstd, row groups of 128 MiB, each part sorted by topic, queue and offset, with Bloom filters on message ids
and keys.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.proto.errors import ConfigError

from ..lake import Lake, Manifest, watermark
from ..stores.directory import list_store
from ..stores.files import FileReader, expand_roots, open_file_system
from ..stores.model import LogFile, Store
from .config import setting
from .reading import local_path, read_stores
from .report import Plot, Report, Table

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
    if not file.is_sealed and not (tail and file.end > 0):
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
    run = uuid.uuid4().hex[:8]
    staging = f"_staging/{run}"
    start, end = files[0].start, files[-1].start + files[-1].end
    base, size = store.files[0].start, store.segment_bytes
    try:
        _write(spark, store, (start, end), (base, size), f"{lake.root}/{staging}", on_corrupt)
        queues = summaries(spark, f"{lake.root}/{staging}", "segment")
        checksums = _checksums(spark, store, files)
        moved = move_in(lake, staging, run, lambda segment: (store.broker_name, int(segment)))
        made = []
        for file in files:
            manifest = _manifest(store, file, queues.get(file.start, []), moved.get(str(file.start), []))
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
    finally:
        with suppress(FileNotFoundError):  # the write failed before its first file
            lake.files.delete_dir(f"{lake.path}/{staging}")


def _write(
    spark: Any, store: Store, bounds: tuple[int, int], shape: tuple[int, int], target: str, on_corrupt: str
) -> None:
    from pyspark.sql import functions as f

    frame = read_stores(
        spark,
        (store.root,),
        brokerName=store.broker_name,
        startPhysicalOffset=str(bounds[0]),
        endPhysicalOffset=str(bounds[1]),
        onCorrupt=on_corrupt,
        upTo="end",
    )
    base, size = shape
    number = f.floor((f.col("physicalOffset") - base) / size)
    write_sorted(frame.withColumn("segment", number * size + base), target)


def write_sorted(frame: Any, target: str) -> None:
    """The frame as a lake's Parquet files, in directories by day and its column ``segment``."""
    from pyspark.sql import functions as f

    (
        frame.withColumn("dt", f.to_date("storeTimestamp"))
        .sortWithinPartitions("dt", "segment", "topic", "queueId", "queueOffset")
        .write.partitionBy("dt", "segment")
        .option("compression", "zstd")
        .option("parquet.block.size", str(128 << 20))
        .option("parquet.bloom.filter.enabled#messageId", "true")
        .option("parquet.bloom.filter.enabled#keys.list.element", "true")
        .parquet(local_path(target))
    )


def summaries(spark: Any, staging: str, by: str) -> dict[Any, list[Any]]:
    """Per value of the column ``by``, a row per queue; read back from what was written."""
    from pyspark.sql import functions as f

    rows = (
        spark.read.parquet(local_path(staging))
        .groupBy(by, "topic", "queueId")
        .agg(
            f.count("*").alias("rows"),
            f.sum("size").alias("bytes"),
            f.min("queueOffset").alias("first"),
            f.max("queueOffset").alias("last"),
            f.min("physicalOffset").alias("low"),
            f.max(f.col("physicalOffset") + f.col("size")).alias("high"),
            f.unix_millis(f.min("storeTimestamp")).alias("begin"),
            f.unix_millis(f.max("storeTimestamp")).alias("end"),
        )
        .collect()
    )
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[row[by]].append(row)
    return found


def _checksums(spark: Any, store: Store, files: list[LogFile]) -> dict[int, int]:
    """CRC-32 of each log file up to its end, one task each."""
    rows = [(file.start,) for file in files]
    by_start = {file.start: file for file in files}
    root = store.root

    def checksum(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            starts = batch.column(0).to_pylist()
            values = [file_checksum(root, by_start[start]) for start in starts]
            yield pa.RecordBatch.from_pydict(
                {"start": pa.array(starts, pa.int64()), "crc": pa.array(values, pa.int64())}
            )

    frame = spark.createDataFrame(rows, "start bigint").repartition(len(rows))
    return {row["start"]: row["crc"] for row in frame.mapInArrow(checksum, "start bigint, crc bigint").collect()}


def file_checksum(root: str, file: LogFile) -> int:
    """CRC-32 of the first ``end`` bytes of a log file."""
    from zlib import crc32

    file_system, _ = open_file_system(root)
    found = 0
    with FileReader(file_system, file.path) as reader:
        for at in range(0, file.end, _READ_BYTES):
            found = crc32(reader.read(at, min(_READ_BYTES, file.end - at)).data, found)
    return found


def move_in(
    lake: Lake, staging: str, run: str, name_of: Callable[[str], tuple[str, int]]
) -> dict[str, list[tuple[str, int]]]:
    """Give the written files their names in the lake; by their ``segment``, path in the lake and bytes.

    ``name_of``: broker and number that a segment's files are named by.
    """
    selector = fs.FileSelector(f"{lake.path}/{staging}", recursive=True)
    moved: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for info in sorted(lake.files.get_file_info(selector), key=lambda info: str(info.path)):
        if info.type != fs.FileType.File or not info.base_name.endswith(".parquet"):
            continue
        day, directory = str(info.path).split("/")[-3:-1]
        segment = directory.partition("=")[2]
        broker, number = name_of(segment)
        folder = f"messages/{day}/broker={broker}"
        name = f"{folder}/{number:020d}-{len(moved[segment]):05d}-{run}.parquet"
        lake.files.create_dir(f"{lake.path}/{folder}", recursive=True)
        lake.files.move(info.path, f"{lake.path}/{name}")
        moved[segment].append((name, int(info.size)))
    return moved


def _manifest(store: Store, file: LogFile, queues: list[Any], files: list[tuple[str, int]]) -> Manifest:
    return Manifest(
        broker=store.broker_name,
        segment=file.start,
        startPhysicalOffset=file.start,
        endPhysicalOffset=file.start + file.end,
        fileBytes=file.size,
        sealed=file.is_sealed,
        rows=sum(row["rows"] for row in queues),
        recordBytes=sum(row["bytes"] for row in queues),
        damages=0,
        firstStoreTimestamp=min((row["begin"] for row in queues if row["begin"] is not None), default=None),
        lastStoreTimestamp=max((row["end"] for row in queues if row["end"] is not None), default=None),
        crc32=0,
        queues=tuple(sorted((row["topic"], row["queueId"], row["rows"], row["first"], row["last"]) for row in queues)),
        files=tuple(files),
        archivedAt=time.time_ns() // 1_000_000,
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
