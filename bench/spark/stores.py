"""Figures over a generated store: scans and jobs; and the same messages as plain Parquet, the peer of all."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.rebuild import job as rebuild
from penstock.pipeline.jobs.verify import job as verify

from ..rig import Rig
from ..runner import Turns
from .generate import QUEUES, generate
from .turns import Peer, Run, bench_session, per_second, records_of, turns_of

HEADER_SCHEMA = "topic string, queueId int, queueOffset bigint, size int, storeTimestamp timestamp"
SEGMENT_BYTES = 256 << 20
LARGE_GIB, LARGE_QUEUES = 20, 1_024


def _parquet(spark: Any, folder: Path, body: int) -> Any:
    """As many messages as a store has, in Parquet files in ``folder``, as a DataFrame."""
    store, lake = folder / f"peer-store-{body}", folder / f"peer-{body}"
    records = records_of(body)
    generate(store, records=records, body_bytes=body, segment_bytes=SEGMENT_BYTES)
    archive.run(spark, archive.Config(store=(str(store),), lake=str(lake), tail=True))
    shutil.rmtree(store)
    return spark.read.option("recursiveFileLookup", "true").parquet(f"file://{lake}/messages")


def scan(frame: Any) -> None:
    """Every row and column of ``frame``, made and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def _scan(spark: Any, store: Path, schema: str | None = None) -> None:
    reader = spark.read.format("penstock_store")
    scan((reader.schema(schema) if schema else reader).load(str(store)))


def large(rig: Rig) -> Turns:
    """One scan of a large store, for its memory, which must not grow with the bytes nor with the queues."""
    records = records_of(1024, LARGE_GIB)
    with rig.folder() as folder, bench_session() as spark:
        generate(folder / "store", records=records, body_bytes=1024, queues=LARGE_QUEUES, segment_bytes=SEGMENT_BYTES)
        yield from turns_of(rig, {"scan": per_second(records, lambda: _scan(spark, folder / "store"))}, warm_ups=0)


def turns(rig: Rig, body: int) -> Turns:
    """Scans and jobs over a store of messages of ``body`` bytes."""
    records = records_of(body)
    with rig.folder() as folder, bench_session() as spark:
        lake = _parquet(spark, folder, body)
        generate(folder / "store", records=records, body_bytes=body, queues=QUEUES, segment_bytes=SEGMENT_BYTES)
        runs = _runs(spark, folder, records)
        peer = Peer("Parquet", per_second(records, partial(scan, lake)))
        yield from turns_of(rig, runs, peers=dict.fromkeys(runs, peer))


def _runs(spark: Any, folder: Path, records: int) -> dict[str, Run]:
    store, lake, queues = folder / "store", folder / "lake", folder / "queues"

    def fill() -> object:
        return archive.run(spark, archive.Config(store=(str(store),), lake=str(lake), tail=True))

    def build(*, index: bool) -> object:
        return rebuild.run(spark, rebuild.Config(store=str(store), into=str(queues), index=index))

    clear = partial(shutil.rmtree, ignore_errors=True)
    return {
        "scan": per_second(records, lambda: _scan(spark, store)),
        "header scan": per_second(records, lambda: _scan(spark, store, HEADER_SCHEMA)),
        "archive": per_second(records, fill, lambda: clear(lake)),
        "rebuild of queues": per_second(records, lambda: build(index=False), lambda: clear(queues)),
        "rebuild of queues and index": per_second(records, lambda: build(index=True), lambda: clear(queues)),
        "verify": per_second(records, lambda: verify.run(spark, verify.Config(store=(str(store),), index=False))),
    }
