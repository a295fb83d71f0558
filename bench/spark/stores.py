"""Cases over a generated store: scans and jobs; and the same messages as plain Parquet, the peer of all cases."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.rebuild import job as rebuild
from penstock.pipeline.jobs.verify import job as verify

from .ceiling import CeilingSource
from .generate import QUEUES, generate
from .measuring import Case, Peer

HEADER_SCHEMA = "topic string, queueId int, queueOffset bigint, size int, storeTimestamp timestamp"
NAMES = ("Spark alone", "scan", "header scan", "archive", "rebuild of queues", "rebuild of queues and index", "verify")
ALONE, SCAN, HEADERS, ARCHIVE, REBUILD, REBUILD_ALL, VERIFY = NAMES
LARGE = "large store"
"""One scan, for its memory, which must not grow with the bytes nor with the queues."""
QUEUES_LARGE = 1_024
TARGETS = {
    (SCAN, 1024): 400_000,
    (SCAN, 100): 1_500_000,
    (HEADERS, 1024): 700_000,
    (HEADERS, 100): 2_400_000,
    (ARCHIVE, 1024): 85_000,  # 100 MB/s of records of 1,177 bytes
    (ARCHIVE, 100): 270_000,
    (REBUILD, 1024): 300_000,
    (REBUILD, 100): 700_000,
    (VERIFY, 1024): 255_000,  # 300 MB/s
}
"""Rows per second on two cores with a warm cache; 80 % of them are the floor."""


@contextlib.contextmanager
def parquet(spark: Any, folder: Path, body: int, gib: float) -> Iterator[Peer]:
    """As many messages as a store of ``gib`` GiB has, in Parquet files in ``folder`` for the ``with`` block."""
    store, lake = folder / f"peer-store-{body}", folder / f"peer-{body}"
    records = int(gib * (1 << 30) / (body + 177))
    generate(store, records=records, body_bytes=body, segment_bytes=256 << 20)
    archive.run(spark, archive.Config(store=(str(store),), lake=str(lake), tail=True))
    shutil.rmtree(store)

    def scan() -> None:
        files = spark.read.option("recursiveFileLookup", "true").parquet(f"file://{lake}/messages")
        files.write.format("noop").mode("overwrite").save()

    try:
        yield Peer(records, scan)
    finally:
        shutil.rmtree(lake, ignore_errors=True)


def cases(spark: Any, folder: Path, body: int, gib: float, wanted: tuple[str, ...]) -> Iterator[Case]:
    """The wanted cases over a store of ``gib`` GiB, which is there while they run."""
    store, lake, queues = folder / f"store-{body}", folder / "lake", folder / "queues"
    records = int(gib * (1 << 30) / (body + 177))
    count = QUEUES_LARGE if LARGE in wanted else QUEUES
    size = generate(store, records=records, body_bytes=body, queues=count, segment_bytes=256 << 20)

    def read(schema: str | None) -> None:
        reader = spark.read.format("penstock_store")
        (reader.schema(schema) if schema else reader).load(str(store)).write.format("noop").mode("overwrite").save()

    def fill() -> object:
        return archive.run(spark, archive.Config(store=(str(store),), lake=str(lake), tail=True))

    def build(*, index: bool) -> object:
        return rebuild.run(spark, rebuild.Config(store=str(store), into=str(queues), index=index))

    def clear(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def pass_on() -> None:
        spark.dataSource.register(CeilingSource)
        reader = spark.read.format(CeilingSource.name()).option("storePath", str(store)).option("rows", records)
        reader.load().write.format("noop").mode("overwrite").save()

    runs: dict[str, Any] = {
        ALONE: (pass_on, lambda: None),
        SCAN: (lambda: read(None), lambda: None),
        HEADERS: (lambda: read(HEADER_SCHEMA), lambda: None),
        ARCHIVE: (fill, lambda: clear(lake)),
        REBUILD: (lambda: build(index=False), lambda: clear(queues)),
        REBUILD_ALL: (lambda: build(index=True), lambda: clear(queues)),
        VERIFY: (lambda: verify.run(spark, verify.Config(store=(str(store),), index=False)), lambda: None),
        LARGE: (lambda: read(None), lambda: None),
    }
    try:
        for name in wanted:
            run, prepare = runs[name]
            yield Case(name, body, records, size, run, TARGETS.get((name, body)), prepare)
    finally:
        for path in (store, lake, queues):
            clear(path)
