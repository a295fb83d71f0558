"""Messages of a lake by topic, time, key, id or place.

Files are chosen by what the table's commits say of them (topics and times); within them Parquet's statistics and Bloom
filters choose. For one message of a store that is still there, ``penstock store query`` answers sooner: Spark takes
seconds to start.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.proto.errors import ConfigError, Corrupt, PenstockError, StorageError
from penstock.runtime.nearest import hint

from ..lake.entries import Entry, LakeFile
from ..lake.lake import NO_DAY, REMEDY, TABLE, Lake
from ..options import parse_time_ms, setting
from .framework.reading import local_path, require_absent, write_new
from .framework.report import Report, Table, over_time, step_for

_LAKE_FILE = re.compile(rf"{TABLE}/(dt=[^/\s]+/[0-9a-f]{{32}}\.parquet)")

_DAY_MS = 86_400_000
BODY_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages of a lake. All conditions must hold."""

    lake: str = setting("the lake's directory or URI")
    topic: str | None = setting("only messages of this topic", None)
    queue: int | None = setting("only of the queues with this number", None)
    key: str | None = setting("only with this key", None)
    message_id: str | None = setting("only with this message id", None)
    tag: str | None = setting("only with this tag", None)
    start: str | None = setting("only stored at or after this time (ISO 8601 or ms)", None)
    end: str | None = setting("only stored before this time", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Wanted):
    """What to look for, and how much to show."""

    limit: int = setting("show so many", 100)
    output: str | None = setting("write all of them as Parquet to this new directory", None)


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    require_times("query", config.start, config.end)
    if config.limit < 0:
        raise ConfigError(f"query: limit is {config.limit}: 0 or more messages to show")
    if config.output is not None:
        require_absent("query", config.output)


def require_times(job: str, start: str | None, end: str | None) -> None:
    """Raises ConfigError if these are no times, or nothing lies between them."""
    times = []
    for name, value in (("start", start), ("end", end)):
        try:
            times.append(None if value is None else parse_time_ms(value))
        except (ValueError, OverflowError):
            raise ConfigError(
                f"{job}: {name} is {value!r}: expected a time as 2026-03-01, 2026-03-01T12:30:00+01:00 (UTC without a "
                "zone), or milliseconds since 1970"
            ) from None
    first, last = times
    if first is not None and last is not None and first >= last:
        raise ConfigError(f"{job}: start is {start!r} and end {end!r}: nothing lies between them, end is not included")


def run(spark: Any, config: Config) -> Report:
    """Count what matches, show the first ``limit`` by time, and write all of it where an output is named.

    Raises ConfigError: an option is wrong, or there is no lake.
    Raises Corrupt: a file of the lake is missing, or cannot be read.
    """
    check(config)
    report = Report("query", asdict(config))
    found = find(spark, config, report)
    if found is None:
        report.figures["messages"] = 0
        report.summary = "no file of the lake may hold such messages"
        return report.finish()
    with naming_files(config.lake):
        _show(spark, config, found, report)
    return report.finish()


def _show(spark: Any, config: Config, found: Any, report: Report) -> None:
    if config.output is not None:
        write_new(found, config.output)
        found = spark.read.parquet(local_path(config.output))
    count = report.figures["messages"] = found.count()
    rows = found.orderBy("storeTimestamp", "physicalOffset").limit(config.limit).collect()
    report.summary = f"{count:,} message{'' if count == 1 else 's'} found"
    times = [row["storeTimestamp"] for row in rows if row["storeTimestamp"] is not None]
    if times:
        report.subject.append(f"Stored from {_told(times[0])} to {_told(times[-1])} UTC, as far as they are shown.")
        counted = [(row["topic"], _ms(row["storeTimestamp"]), 1) for row in rows if row["storeTimestamp"] is not None]
        step = step_for(_ms(times[0]), _ms(times[-1]))
        report.plots.append(over_time("Messages shown, by the time they were stored", counted, step))
    shown = ["topic", "tags", "keys", "brokerName", "queueId", "queueOffset", "messageId", "size"]
    lines = [
        [
            _told(row["storeTimestamp"]),
            bytes(row["body"] or b"")[:BODY_SHOWN_BYTES].decode("utf-8", "replace"),
            *(row[name] for name in shown),
        ]
        for row in rows
    ]
    title = "Messages" if count <= len(rows) else f"The first {len(rows):,} of {count:,} messages"
    report.tables.append(Table(title, ["storeTimestamp", "body", *shown], lines))


def _told(time: datetime | None) -> str:
    """A time as Spark hands it over, of this machine's zone, in UTC."""
    return "-" if time is None else f"{time.astimezone(UTC).replace(tzinfo=None).isoformat(' ', 'milliseconds')}"


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def find(spark: Any, config: Wanted, report: Report) -> Any:
    """The matching rows; None where no file of the lake may hold any. The report is told which files are read.

    Raises ConfigError: there is no lake, nothing in it, or no message of the topic.
    Raises Corrupt: a file that has to be read is missing, or cut.
    """
    lake = Lake(config.lake)
    lake.require()
    entries = lake.readable()
    if not entries:
        raise ConfigError(f"{lake.root}: an empty lake: archive into it first")
    topics = sorted({topic for entry in entries for topic, *_ in entry.queues})
    if config.topic is not None and config.topic not in topics:
        close = hint(config.topic, topics)
        raise ConfigError(f"{lake.root}: no message of the topic {config.topic!r}{close}; it has {len(topics)} topics")
    chosen = [entry for entry in entries if _may_match(entry, config)]
    lake.require_files(chosen)
    files = lake.paths_of(file for one in chosen for file in one.files if _may_have(file, config))
    report.figures |= {"segments": len(entries), "segments_read": len(chosen), "files_read": len(files)}
    if not files:
        return None
    with naming_files(config.lake):
        # Without checksums of pages some flipped bits make other messages.
        frame = spark.read.option("parquet.page.verify-checksum.enabled", "true").parquet(*files)
    return _matching(frame, config)


@contextlib.contextmanager
def naming_files(root: str) -> Iterator[None]:
    """What Spark says of a file of the lake that cannot be read becomes an error that names the file.

    Raises Corrupt: there is such a file.
    Raises StorageError: an archive replaced it meanwhile.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        named = _LAKE_FILE.search(str(error))
        if named is None:
            raise
        lake = Lake(root)
        if all(named[1] != file.name for entry in lake.readable() for file in entry.files):
            raise StorageError(
                f"{lake.root}/{named[0]}: an archive replaced the file while it was read: run the job again"
            ) from error
        raise Corrupt(
            f"{lake.root}/{named[0]}: Spark cannot read it: {REMEDY}; penstock pipeline archive --check names "
            "all such files"
        ) from error


def _may_match(entry: Entry, config: Wanted) -> bool:
    if config.topic is not None and all(topic != config.topic for topic, *_ in entry.queues):
        return False
    first, last = entry.firstStoreTimestamp, entry.lastStoreTimestamp
    if config.start is not None and last is not None and last < parse_time_ms(config.start):
        return False
    return config.end is None or first is None or first < parse_time_ms(config.end)


def _may_have(file: LakeFile, config: Wanted) -> bool:
    """Whether messages of the file's day may be wanted."""
    if file.day == NO_DAY:
        return config.start is None and config.end is None
    first_ms = parse_time_ms(file.day)
    if config.start is not None and first_ms + _DAY_MS <= parse_time_ms(config.start):
        return False
    return config.end is None or first_ms < parse_time_ms(config.end)


def _matching(frame: Any, config: Wanted) -> Any:
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
