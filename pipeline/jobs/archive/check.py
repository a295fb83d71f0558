"""Whether a lake holds what a store does: the archive job with ``check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...lake.lake import Lake, Manifest
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
    manifests = {one.segment: one for one in lake.manifests() if one.broker == store.broker_name}
    for file in store.files:
        held = manifests.get(file.start)
        if file.is_sealed and (held is None or not held.sealed):
            what = "is not archived" if held is None else f"is archived up to {held.endPhysicalOffset} only"
            report.problem(f"the log file {what}", broker=store.broker_name, segment=file.start)
    starts = [start for start, _ in ranges_of(store.broker_name, manifests.values(), store.files)]
    report_holes(report, store, list(manifests.values()), min(starts))
    checked = _check_log_files(spark, report, store, manifests)
    rows, wrong = _examine(spark, lake, list(manifests.values()))
    for manifest in manifests.values():
        where: dict[str, Any] = {"broker": store.broker_name, "segment": manifest.segment}
        for name, _ in manifest.files:
            if name in wrong:
                report.problem(f"{lake.root}/{name}: {wrong[name]}", **where)
        found = sum(rows[name] for name, _ in manifest.files)
        if found != manifest.rows and not any(name in wrong for name, _ in manifest.files):
            report.problem(f"the lake holds {found} messages, the manifest says {manifest.rows}", **where)
    for name, count in (("checked_segments", checked), ("checked_files", len(rows))):
        report.figures[name] = report.figures.get(name, 0) + count


def _check_log_files(spark: Any, report: Report, store: Store, manifests: Mapping[int, Manifest]) -> int:
    """Compare log files with their manifests, as far as both have them; how many were compared whole."""
    both = [(manifests[file.start], file) for file in store.files if file.start in manifests]
    whole = [(one, replace(file, end=length_of(one))) for one, file in both if file.end >= length_of(one)]
    checksums = checksums_of(spark, store, [file for _, file in whole]) if whole else {}
    for manifest, file in whole:
        found = checksums.get(file.start, manifest.crc32)  # retention takes what is archived
        if found != manifest.crc32:
            text = f"the log file has the checksum {found:#010x}, its manifest {manifest.crc32:#010x}"
            report.problem(text, broker=store.broker_name, segment=file.start)
    for manifest, file in both:
        if file.end >= length_of(manifest):
            continue
        where: dict[str, Any] = {"broker": store.broker_name, "segment": file.start}
        if file.is_sealed:
            report.problem(f"the log file has {file.end} bytes, its manifest {length_of(manifest)}", **where)
        head, _ = sample_of(store.root, manifest, file)
        if head is not None and manifest.headCrc32 != head:
            text = f"the log file's first {SAMPLE_BYTES} bytes have the checksum {head:#010x}"
            report.problem(f"{text}, its manifest {manifest.headCrc32:#010x}", **where)
    return len(checksums)


def _examine(spark: Any, lake: Lake, manifests: list[Manifest]) -> tuple[dict[str, int], dict[str, str]]:
    """Read the files of the lake; how many messages each holds, and what is wrong with those that are not whole."""
    root = lake.root
    work: list[list[tuple[str, int, int]]] = [[]]
    for manifest in manifests:
        for (name, size), checksum in zip(manifest.files, manifest.fileCrc32, strict=True):
            if sum(each[1] for each in work[-1]) + size > _EXAMINED_BYTES and work[-1]:
                work.append([])
            work[-1].append((name, size, checksum))
    if not work[0]:
        return {}, {}

    def read(files: list[tuple[str, int, int]]) -> Iterator[pa.RecordBatch]:
        found = [examine(Lake(root), *file) for file in files]
        rows, wrong = zip(*found, strict=True)
        yield pa.RecordBatch.from_pydict({"name": [file[0] for file in files], "rows": rows, "wrong": wrong})

    told = one_task_each(spark, work, read, "name string, rows bigint, wrong string").collect()
    return {row["name"]: row["rows"] for row in told}, {row["name"]: row["wrong"] for row in told if row["wrong"]}
