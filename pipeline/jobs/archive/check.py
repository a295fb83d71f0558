"""Whether a lake holds what a store does: the archive job with ``check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...lake.entries import Entry, LakeFile
from ...lake.lake import TABLE, Lake
from ...lake.lake_files import examine
from ...stores.model import Store
from ..framework.reading import one_task_each
from ..framework.report import Report
from .logs import SAMPLE_BYTES, checksums_of, length_of, ranges_of, report_holes, sample_of

_EXAMINED_BYTES = 256 << 20
"""About what a task of the check reads of the lake."""


def check_lake(spark: Any, report: Report, lake: Lake, store: Store) -> None:
    """Whether the lake holds what the store does: the log's bytes and the lake's files by checksum, rows by number.

    Files of the lake whose log file is gone are read too: there is no other copy of them.
    """
    entries = {one.segment: one for one in lake.entries() if one.broker == store.broker_name}
    for file in store.files:
        held = entries.get(file.start)
        if file.is_sealed and (held is None or not held.sealed):
            what = "is not archived" if held is None else f"is archived up to {held.endPhysicalOffset} only"
            report.problem(f"the log file {what}", broker=store.broker_name, segment=file.start)
    starts = [start for start, _ in ranges_of(store.broker_name, entries.values(), store.files)]
    report_holes(report, store, list(entries.values()), min(starts))
    checked = _check_log_files(spark, report, store, entries)
    rows, wrong = _examine(spark, lake, list(entries.values()))
    for entry in entries.values():
        where: dict[str, Any] = {"broker": store.broker_name, "segment": entry.segment}
        for name, *_ in entry.files:
            if name in wrong:
                report.problem(f"{lake.root}/{TABLE}/{name}: {wrong[name]}", **where)
        found = sum(rows[name] for name, *_ in entry.files)
        if found != entry.rows and not any(name in wrong for name, *_ in entry.files):
            report.problem(f"the lake holds {found} messages, its commit says {entry.rows}", **where)
    for name, count in (("checked_segments", checked), ("checked_files", len(rows))):
        report.figures[name] = report.figures.get(name, 0) + count


def _check_log_files(spark: Any, report: Report, store: Store, entries: Mapping[int, Entry]) -> int:
    """Compare log files with their entries, as far as both have them; how many were compared whole."""
    both = [(entries[file.start], file) for file in store.files if file.start in entries]
    whole = [(one, replace(file, end=length_of(one))) for one, file in both if file.end >= length_of(one)]
    checksums = checksums_of(spark, store, [file for _, file in whole]) if whole else {}
    for entry, file in whole:
        found = checksums.get(file.start, entry.crc32)  # retention takes what is archived
        if found != entry.crc32:
            text = f"the log file has the checksum {found:#010x}, the lake's commit {entry.crc32:#010x}"
            report.problem(text, broker=store.broker_name, segment=file.start)
    for entry, file in both:
        if file.end >= length_of(entry):
            continue
        where: dict[str, Any] = {"broker": store.broker_name, "segment": file.start}
        if file.is_sealed:
            report.problem(f"the log file has {file.end} bytes, the lake's commit {length_of(entry)}", **where)
        head, _ = sample_of(store.root, entry, file)
        if head is not None and entry.headCrc32 != head:
            text = f"the log file's first {SAMPLE_BYTES} bytes have the checksum {head:#010x}"
            report.problem(f"{text}, the lake's commit {entry.headCrc32:#010x}", **where)
    return len(checksums)


def _examine(spark: Any, lake: Lake, entries: list[Entry]) -> tuple[dict[str, int], dict[str, str]]:
    """Read the files of the lake; how many messages each holds, and what is wrong with those that are not whole."""
    root = lake.root
    work: list[list[LakeFile]] = [[]]
    for entry in entries:
        for file in entry.files:
            if sum(each.size for each in work[-1]) + file.size > _EXAMINED_BYTES and work[-1]:
                work.append([])
            work[-1].append(file)
    if not work[0]:
        return {}, {}

    def read(files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
        found = [examine(Lake(root), *file) for file in files]
        rows, wrong = zip(*found, strict=True)
        yield pa.RecordBatch.from_pydict({"name": [file.name for file in files], "rows": rows, "wrong": wrong})

    told = one_task_each(spark, work, read, "name string, rows bigint, wrong string").collect()
    return {row["name"]: row["rows"] for row in told}, {row["name"]: row["wrong"] for row in told if row["wrong"]}
