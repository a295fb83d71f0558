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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from penstock.proto.errors import ConfigError, StorageError

from ..arrow_types import arrow_schema
from ..lake import Lake, Manifest, folder_name, watermark
from ..lake_files import COLUMNS, examine, write_sorted
from ..schema import STORE_COLUMNS, as_struct
from ..stores.files import FileReader, open_file_system
from ..stores.model import LogFile, Store
from ..stores.options import StoreOptions
from ..stores.planning import Split, plan_splits
from ..workers import keep_loaded
from .config import setting
from .reading import list_stores, one_task_each, require_names
from .report import Plot, Report, Table

log = logging.getLogger(__name__)

STAGED_S = 86_400
"""No job works on a few log files for so long."""
SAMPLE_BYTES = 4096
"""So much of a log file's beginning and end tells it from every other log's: records name their time, host and id."""
_READ_BYTES = 8 << 20
_SAMPLED_AT_ONCE = 16
_EXAMINED_BYTES = 256 << 20
"""About what a task of the check reads of the lake."""


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


def check(config: Config) -> None:
    """Nothing, if the options are right, as far as can be told without Spark.

    Raises:
        ConfigError: they are not.
    """
    if config.on_corrupt not in ("fail", "skip"):
        raise ConfigError(f"archive: on_corrupt is {config.on_corrupt!r}: fail or skip")
    if config.up_to not in ("confirm", "end"):
        raise ConfigError(f"archive: up_to is {config.up_to!r}: confirm or end")
    require_names("archive", config.store, config.broker_name)


def run(spark: Any, config: Config) -> Report:
    """Archive what is missing, or check what is there. The figures hold the watermark of each broker.

    Raises:
        ConfigError: an option is wrong, or the lake holds another log under the name of one of these stores.
    """
    check(config)
    report = Report("archive", asdict(config))
    lake = Lake(config.lake)
    require_kind(lake, of_topics=False)
    stores = list_stores("archive", config.store, config.broker_name, config.up_to)
    if config.namesrv is not None:
        _require_groups(config.namesrv, [store.broker_name for store in stores])
    if config.check:
        lake.require()
        for store in stores:
            _check(spark, report, lake, store)
        return report.finish()
    for store in stores:  # all of them before anything is written
        _require_same_logs(spark, lake, store)
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


def _require_same_logs(spark: Any, lake: Lake, store: Store) -> None:
    """Nothing, if what the lake holds under the store's name is of the store's log, as far as both have it.

    A manifest of version 1 knows its log file by the checksum of the whole only: that is proven once, and it is written
    again with what is proven cheaply.

    Raises:
        ConfigError: the lake holds another log.
    """
    manifests = [one for one in lake.manifests() if one.broker == store.broker_name]
    files = {file.start: file for file in store.files}
    _require_same_borders(lake, store, manifests)
    both = [(one, files[one.segment]) for one in manifests if one.segment in files]
    with ThreadPoolExecutor(_SAMPLED_AT_ONCE) as pool:
        samples = list(pool.map(lambda pair: _sample_of(store.root, *pair), both))
    unproven: list[tuple[Manifest, LogFile, tuple[int, int]]] = []
    for (manifest, file), (head, tail) in zip(both, samples, strict=True):
        is_cut = file.is_sealed and manifest.sealed and file.end != _length(manifest)
        differs = head is not None and manifest.headCrc32 not in (None, head)
        if is_cut or differs or (manifest.sealed and tail is not None and manifest.tailCrc32 not in (None, tail)):
            raise _another_log(lake, store, manifest, file)
        if manifest.headCrc32 is None and head is not None and tail is not None:
            unproven.append((manifest, file, (head, tail)))
    if not unproven:
        return
    cut = [replace(file, end=_length(manifest)) for manifest, file, _ in unproven]
    checksums = _checksums(spark, store, cut)
    for manifest, file, _ in unproven:
        if checksums[file.start] != manifest.crc32:
            raise _another_log(lake, store, manifest, file)
    for manifest, _, (head, tail) in unproven:
        lake.commit(replace(manifest, headCrc32=head, tailCrc32=tail))


def _require_same_borders(lake: Lake, store: Store, manifests: list[Manifest]) -> None:
    """Nothing, if no log file of the lake begins within one of the store's, or the other way round."""
    places: list[tuple[int, int, LogFile | Manifest]] = [(file.start, file.size, file) for file in store.files]
    places += [(one.segment, one.fileBytes, one) for one in manifests]
    for (start, size, former), (following, _, latter) in pairwise(sorted(places, key=lambda place: place[:2])):
        if start < following < start + size:
            file, manifest = (former, latter) if isinstance(former, LogFile) else (latter, former)
            if isinstance(file, LogFile) and isinstance(manifest, Manifest):
                raise _another_log(lake, store, manifest, file)


def _another_log(lake: Lake, store: Store, manifest: Manifest, file: LogFile) -> ConfigError:
    return ConfigError(
        f"archive: {lake.root}/{manifest.name} is about another log than {file.path} of the store {store.root}, and "
        f"both would be broker {store.broker_name!r}: set broker_name to another name for this store, or name another "
        "lake. Nothing was archived, and no watermark set. (If it is the same log, it is damaged, which penstock store "
        "verify tells, or was cut off there and written anew since: then delete the manifest.)"
    )


def _length(manifest: Manifest) -> int:
    return manifest.endPhysicalOffset - manifest.startPhysicalOffset


def _sample_of(root: str, manifest: Manifest, file: LogFile) -> tuple[int | None, int | None]:
    """See :func:`sample`; None for what the store has not, as a replica that follows, or has no longer."""
    length = _length(manifest)
    try:
        if file.end >= length:
            return sample(root, file, length)
        return (sample(root, file, SAMPLE_BYTES)[0] if file.end >= SAMPLE_BYTES else None), None
    except StorageError as error:  # retention takes what is archived
        log.info("log file not compared with the lake's path=%s error=%s", file.path, error)
        return None, None


def sample(root: str, file: LogFile, length: int) -> tuple[int, int]:
    """CRC-32 of the first and of the last :data:`SAMPLE_BYTES` of a log file's first ``length`` bytes."""
    file_system, _ = open_file_system(root)
    count = min(SAMPLE_BYTES, length)
    with FileReader(file_system, file.path) as reader:
        return crc32(reader.read(0, count).data), crc32(reader.read(length - count, count).data)


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
            head, tail = sample(store.root, file, file.end)
            own = pc.and_(
                pc.greater_equal(written["start"], file.start), pc.less(written["start"], file.start + file.size)
            )
            manifest = _manifest(lake, store, file, written.filter(own))
            manifest = replace(
                manifest,
                crc32=checksums[file.start],
                damages=_damages(store, file, manifest, on_corrupt),
                headCrc32=head,
                tailCrc32=tail,
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
    file_system, _ = open_file_system(root)
    found = 0
    with FileReader(file_system, file.path) as reader:
        for at in range(0, file.end, _READ_BYTES):
            found = crc32(reader.read(at, min(_READ_BYTES, file.end - at)).data, found)
    return found


def move_in(lake: Lake, written: pa.Table, number: int) -> dict[str, Any]:
    """Give files of one broker their names in the lake, with ``number`` as a part; the manifest's fields about them."""
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
    return {"files": tuple(moved), "fileCrc32": tuple(checksums)}


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
        archivedAt=time.time_ns() // 1_000_000,
        **move_in(lake, written, file.start),
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
    """Whether the lake holds what the store does: the log's bytes and the lake's files by checksum, rows by number.

    Files of the lake whose log file is gone are read too: there is no other copy of them.
    """
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
    rows, wrong = _examine(spark, lake, list(manifests.values()))
    for manifest in manifests.values():
        where: dict[str, Any] = {"broker": store.broker_name, "segment": manifest.segment}
        for name, _ in manifest.files:
            if name in wrong:
                report.problem(f"{lake.root}/{name}: {wrong[name]}", **where)
        found = sum(rows[name] for name, _ in manifest.files)
        if found != manifest.rows and not any(name in wrong for name, _ in manifest.files):
            report.problem(f"the lake holds {found} messages, the manifest says {manifest.rows}", **where)
    for name, count in (("checked_segments", len(cut)), ("checked_files", len(rows))):
        report.figures[name] = report.figures.get(name, 0) + count


def _examine(spark: Any, lake: Lake, manifests: list[Manifest]) -> tuple[dict[str, int], dict[str, str]]:
    """Read the files of the lake; how many messages each holds, and what is wrong with those that are not whole."""
    root = lake.root
    work: list[list[tuple[str, int, int | None]]] = [[]]
    for one in (file for manifest in manifests for file in manifest.named_files()):
        if sum(size for _, size, _ in work[-1]) + one[1] > _EXAMINED_BYTES and work[-1]:
            work.append([])
        work[-1].append(one)
    if not work[0]:
        return {}, {}

    def read(files: list[tuple[str, int, int | None]]) -> Iterator[pa.RecordBatch]:
        found = [examine(Lake(root), *file) for file in files]
        rows, wrong = zip(*found, strict=True)
        yield pa.RecordBatch.from_pydict({"name": [file[0] for file in files], "rows": rows, "wrong": wrong})

    told = one_task_each(spark, work, read, "name string, rows bigint, wrong string").collect()
    return {row["name"]: row["rows"] for row in told}, {row["name"]: row["wrong"] for row in told if row["wrong"]}
