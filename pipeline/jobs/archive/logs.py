"""The logs that an archive is of: whether a lake's files are of a store's log, its epochs, its holes.

A log file is known again by checksums of its first and last 4 KiB: records name their time, host and id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyarrow import fs

from penstock.proto.errors import ConfigError, StorageError

from ...lake.entries import Entry, holes
from ...lake.lake import Lake
from ...stores.files import FileReader, open_file_system
from ...stores.model import LogFile, Store
from ..framework.reading import one_task_each
from ..framework.report import Report

log = logging.getLogger(__name__)

SAMPLE_BYTES = 4096
"""So much of a log file's beginning and end tells it from every other log's."""
_READ_BYTES = 8 << 20
_SAMPLED_AT_ONCE = 16


def epochs_within(
    entries: tuple[tuple[int, int], ...] | None, start: int, end: int
) -> tuple[tuple[int, int], ...] | None:
    """The epochs that wrote bytes of ``[start, end)``; None where the entries begin behind ``start``."""
    if not entries or entries[0][1] > start:
        return None
    stops = (*(at for _, at in entries[1:]), end)
    return tuple(one for one, stop in zip(entries, stops, strict=True) if max(one[1], start) < min(stop, end))


def require_same_logs(lake: Lake, store: Store) -> None:
    """Raises ConfigError if the lake holds another log under the store's name, as far as both have it."""
    entries = [one for one in lake.entries() if one.broker == store.broker_name]
    files = {file.start: file for file in store.files}
    _require_same_borders(lake, store, entries)
    both = [(one, files[one.segment]) for one in entries if one.segment in files]
    with ThreadPoolExecutor(_SAMPLED_AT_ONCE) as pool:
        samples = list(pool.map(lambda pair: sample_of(store.root, *pair), both))
    for (entry, file), (head, tail) in zip(both, samples, strict=True):
        is_cut = file.is_sealed and entry.sealed and file.end != length_of(entry)
        differs = head not in (None, entry.headCrc32)
        if is_cut or differs or (entry.sealed and tail not in (None, entry.tailCrc32)):
            raise _another_log(lake, store, entry, file)


def _require_same_borders(lake: Lake, store: Store, entries: list[Entry]) -> None:
    """Nothing, if no log file of the lake begins within one of the store's, or the other way round."""
    places: list[tuple[int, int, LogFile | Entry]] = [(file.start, file.size, file) for file in store.files]
    places += [(one.segment, one.fileBytes, one) for one in entries]
    for (start, size, former), (following, _, latter) in pairwise(sorted(places, key=lambda place: place[:2])):
        if start < following < start + size:
            file, entry = (former, latter) if isinstance(former, LogFile) else (latter, former)
            if isinstance(file, LogFile) and isinstance(entry, Entry):
                raise _another_log(lake, store, entry, file)


def _another_log(lake: Lake, store: Store, entry: Entry, file: LogFile) -> ConfigError:
    return ConfigError(
        f"archive: {lake.root}: its {entry} is of another log than {file.path} of the store {store.root}, and "
        f"both would be broker {store.broker_name!r}: set broker_name to another name for this store, or name another "
        "lake. Nothing was archived, and no watermark set. (If it is the same log, it is damaged, which penstock store "
        "verify tells, or was cut off there and written anew since: then take it out of the table, with deltalake's "
        f'DeltaTable.delete("broker = {entry.broker!r} and segment = {entry.segment}").)'
    )


def length_of(entry: Entry) -> int:
    return entry.endPhysicalOffset - entry.startPhysicalOffset


def sample_of(root: str, entry: Entry, file: LogFile) -> tuple[int | None, int | None]:
    """See :func:`sample`; None for what the store has not, as a replica that follows, or has no longer."""
    length = length_of(entry)
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


def checksums_of(spark: Any, store: Store, files: list[LogFile]) -> dict[int, int]:
    """CRC-32 of each log file up to its end, one task each; none of those that are deleted meanwhile."""
    root = store.root

    def checksum(file: LogFile) -> Iterator[pa.RecordBatch]:
        found = file_checksum(root, file)
        if found is not None:
            yield pa.RecordBatch.from_pydict({"start": [file.start], "crc": [found]})

    rows = one_task_each(spark, files, checksum, "start bigint, crc bigint").collect()
    return {row["start"]: row["crc"] for row in rows}


def file_checksum(root: str, file: LogFile) -> int | None:
    """CRC-32 of the first ``end`` bytes of a log file; None where it is deleted."""
    file_system, _ = open_file_system(root)
    found = 0
    try:
        with FileReader(file_system, file.path) as reader:
            for at in range(0, file.end, _READ_BYTES):
                found = crc32(reader.read(at, min(_READ_BYTES, file.end - at)).data, found)
    except StorageError:
        if file_system.get_file_info(file.path).type == fs.FileType.NotFound:
            return None
        raise
    return found


def ranges_of(broker: str, entries: Iterable[Entry], files: Iterable[LogFile]) -> list[tuple[int, int]]:
    archived = [(one.startPhysicalOffset, one.endPhysicalOffset) for one in entries if one.broker == broker]
    return archived + [(file.start, file.start + file.end) for file in files]


def report_holes(report: Report, store: Store, entries: list[Entry], since: int) -> None:
    """Tell the report which bytes from ``since`` on neither the store nor the lake has."""
    where: dict[str, Any] = {"broker": store.broker_name, "store": store.root}
    remedy = "archive a replica that has them under the same broker_name"
    ranges = ranges_of(store.broker_name, entries, store.files)
    for start, end in holes(ranges, since):
        stays = f"; until then the watermark stays at {start}" if start >= store.files[0].start else ""
        text = f"neither the store nor the lake has the bytes {start} to {end} of the log: {remedy}{stays}"
        report.problem(text, **where)
    reached = max(end for _, end in ranges)
    for gap in store.gaps:
        if gap.start >= reached:
            report.problem(f"{gap.reason}: {remedy}", **where, offset=gap.start)
