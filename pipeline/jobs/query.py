"""Messages of a lake by topic, time, key, id or place.

Files are chosen from the manifests (topics and times); within them Parquet's statistics and Bloom filters choose. For
one message of a store that is still there, ``penstock store query`` answers sooner: Spark takes seconds to start.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..lake import Lake, Manifest
from ..stores.options import parse_time_ms
from .config import setting
from .reading import local_path
from .report import Report, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to look for. All conditions must hold."""

    lake: str = setting("the lake's directory or URI")
    topic: str | None = setting("of this topic", None)
    queue: int | None = setting("of the queues with this number", None)
    key: str | None = setting("with this key", None)
    message_id: str | None = setting("with this message id", None)
    tag: str | None = setting("with this tag", None)
    start: str | None = setting("stored at or after this time (ISO 8601 or ms)", None)
    end: str | None = setting("stored before this time", None)
    limit: int = setting("show so many", 100)
    output: str | None = setting("write all of them as Parquet to this new directory", None)


def run(spark: Any, config: Config) -> Report:
    """Count what matches, show the first ``limit`` by time, and write all of it where an output is named."""
    report = Report("query", asdict(config))
    found = find(spark, config, report)
    if found is None:
        report.figures["messages"] = 0
        return report.finish()
    if config.output is not None:
        found.write.mode("errorifexists").option("compression", "zstd").parquet(local_path(config.output))
        found = spark.read.parquet(local_path(config.output))
    report.figures["messages"] = found.count()
    rows = found.orderBy("storeTimestamp", "physicalOffset").limit(config.limit).collect()
    shown = ["storeTimestamp", "topic", "brokerName", "queueId", "queueOffset", "messageId", "tags", "keys", "size"]
    lines = [[str(row[name]) if name == "storeTimestamp" else row[name] for name in shown] for row in rows]
    bodies = [bytes(row["body"] or b"")[:200].decode("utf-8", "replace") for row in rows]
    table = [[*line, body] for line, body in zip(lines, bodies, strict=True)]
    report.tables.append(Table("Messages", [*shown, "body"], table))
    return report.finish()


def find(spark: Any, config: Config, report: Report) -> Any:
    """The matching rows; None where no file of the lake may hold any. The report is told which files are read.

    Raises:
        ConfigError: there is no lake.
    """
    lake = Lake(config.lake)
    lake.require()
    manifests = lake.manifests()
    chosen = [manifest for manifest in manifests if _may_match(manifest, config)]
    files = lake.paths_of(chosen)
    report.figures |= {"segments": len(manifests), "segments_read": len(chosen), "files_read": len(files)}
    return _matching(spark.read.parquet(*files), config) if files else None


def _may_match(manifest: Manifest, config: Config) -> bool:
    if config.topic is not None and all(topic != config.topic for topic, *_ in manifest.queues):
        return False
    first, last = manifest.firstStoreTimestamp, manifest.lastStoreTimestamp
    if config.start is not None and last is not None and last < parse_time_ms(config.start):
        return False
    return config.end is None or first is None or first < parse_time_ms(config.end)


def _matching(frame: Any, config: Config) -> Any:
    from pyspark.sql import functions as f

    for name, value in (
        ("topic", config.topic),
        ("queueId", config.queue),
        ("messageId", config.message_id),
        ("tags", config.tag),
    ):
        if value is not None:
            frame = frame.where(f.col(name) == value)
    if config.key is not None:
        frame = frame.where(f.array_contains("keys", config.key))
    if config.start is not None:
        frame = frame.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(parse_time_ms(config.start))))
    if config.end is not None:
        frame = frame.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(parse_time_ms(config.end))))
    return frame
