"""``python -m penstock.pipeline.benchmark``: run the cases and keep a line of results for ``RESULTS.md``."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ..jobs import archive, rebuild, verify
from ..sessions import session
from .generate import generate

HEADER_SCHEMA = "topic string, queueId int, queueOffset bigint, size int, storeTimestamp timestamp"
FLOORS = {
    ("scan", 1024): 400_000,
    ("scan", 100): 1_500_000,
    ("header scan", 1024): 700_000,
    ("header scan", 100): 2_400_000,
    ("archive", 1024): 85_000,  # 100 MB/s of records of 1,177 bytes
    ("archive", 100): 270_000,
    ("rebuild", 1024): 300_000,
    ("rebuild", 100): 700_000,
    ("verify", 1024): 255_000,  # 300 MB/s
}
"""Rows per second to reach on two cores with a warm cache; 80 % of them are the floor."""


def _cases(spark: Any, store: Path, scratch: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    def scan(schema: str | None) -> Callable[[], object]:
        def run() -> None:
            reader = spark.read.format("penstock_store")
            (reader.schema(schema) if schema else reader).load(str(store)).write.format("noop").mode("overwrite").save()

        return run

    def fresh(name: str) -> str:
        target = scratch / name
        shutil.rmtree(target, ignore_errors=True)
        return str(target)

    yield "scan", scan(None)
    yield "header scan", scan(HEADER_SCHEMA)
    yield "archive", lambda: archive.run(spark, archive.Config(store=(str(store),), lake=fresh("lake"), tail=True))

    def parquet() -> None:
        spark.read.option("recursiveFileLookup", "true").parquet(f"file://{scratch}/lake/messages").write.format(
            "noop"
        ).mode("overwrite").save()

    yield "Parquet scan of the lake", parquet
    yield "rebuild", lambda: rebuild.run(spark, rebuild.Config(store=str(store), into=fresh("queues")))
    yield "verify", lambda: verify.run(spark, verify.Config(store=(str(store),), index=False))


def _peak_mib() -> float:
    """The largest of this process's ended children: the Python workers and, at the end, Java."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


@click.command()
@click.option("--gib", default=1.0, show_default=True, help="Size of each generated store.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--master", default="local[2]", show_default=True)
@click.option("--body", "bodies", multiple=True, type=int, default=(1024, 100), show_default=True)
@click.option("--out", type=click.Path(file_okay=False), default="bench", show_default=True)
@click.option("--scratch", type=click.Path(exists=True, file_okay=False), help="Where the stores lie.")
def main(gib: float, repeats: int, master: str, bodies: tuple[int, ...], out: str, scratch: str | None) -> None:
    """Time each case on each store, after one warm-up."""
    results: list[dict[str, Any]] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-spark-", dir=scratch) as folder:
        spark = session(
            "penstock bench", master=master, conf={"spark.ui.enabled": "false", "spark.driver.memory": "2g"}
        )
        spark.sparkContext.setLogLevel("ERROR")
        for body in bodies:
            store = Path(folder) / f"store-{body}"
            records = int(gib * (1 << 30) / (body + 177))
            size = generate(store, records=records, body_bytes=body, segment_bytes=256 << 20)
            for name, run in _cases(spark, store, Path(folder)):
                times = []
                for turn in range(repeats + 1):
                    began = time.perf_counter()
                    run()
                    if turn:
                        times.append(time.perf_counter() - began)
                seconds = statistics.median(times)
                target = FLOORS.get((name, body))
                result = {
                    "case": name,
                    "body_bytes": body,
                    "records": records,
                    "log_bytes": size,
                    "seconds": round(seconds, 2),
                    "rows_per_s": round(records / seconds),
                    "mb_per_s": round(size / seconds / 1e6),
                    "target_rows_per_s": target,
                    "reached": None if target is None else records / seconds >= 0.8 * target,
                }
                click.echo(json.dumps(result))
                results.append(result)
            shutil.rmtree(store)
        spark.stop()
    document = {
        "master": master,
        "repeats": repeats,
        "python": platform.python_version(),
        "spark": _version("pyspark"),
        "pyarrow": _version("pyarrow"),
        "cpus": os.cpu_count(),
        "load_before": round(load_before, 2),
        "child_peak_mib": round(_peak_mib()),
        "results": results,
    }
    target_file = Path(out) / "results" / "spark.jsonl"
    target_file.parent.mkdir(parents=True, exist_ok=True)
    with open(target_file, "a") as output:
        output.write(json.dumps(document) + "\n")


def _version(name: str) -> str:
    from importlib import metadata

    return metadata.version(name)


if __name__ == "__main__":
    main()
