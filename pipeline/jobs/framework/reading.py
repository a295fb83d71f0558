"""Stores as the jobs read them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pyarrow import fs

from penstock.formats.directory import COMMIT_LOG, SAFE_TOPIC
from penstock.formats.record.layout import SysFlag
from penstock.proto.errors import ConfigError, WrongStore

from ...spark.registration import register
from ...spark.sessions import reads_here
from ...spark.workers import keep_loaded
from ...stores.files import Folder, expand_roots, open_file_system, written
from .here import frame_here, store_here

log = logging.getLogger(__name__)

T = TypeVar("T")
JOB_FILE = "penstock-job.json"
"""In a checkpoint: which job it belongs to, from where to where."""
FOLLOW_POLL_S = 0.5
LITTLE_BYTES_MAX = 64 << 20
"""What a job reads in a second or two, as long as Java needs to compile well."""
_INPUTS = ("store", "replica", "history", "lake")
"""Fields of configurations that say where a job reads."""


def is_sound(topic: Any) -> Any:
    """The condition for names that a topic may have."""
    return topic.rlike(rf"\A{SAFE_TOPIC}\z")


def has_no_entry(sys_flag: Any) -> Any:
    """The condition for records that no consume queue names: half messages, rolled-back ones, inner batches."""
    from pyspark.sql import functions as f

    kind = sys_flag.bitwiseAND(f.lit(SysFlag.TRANSACTION_MASK))
    special = kind.isin(SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)
    return special | (sys_flag.bitwiseAND(f.lit(SysFlag.INNER_BATCH)) != 0)


def read_stores(spark: Any, roots: tuple[str, ...], schema: str = "", **options: object) -> Any:
    """A frame of ``penstock_store``; options that are None, empty or False are left out."""
    given = {"storePath": ",".join(roots)}
    for name, value in options.items():
        if value is None or value == () or value == "" or value is False:
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        given[name] = "true" if value is True else text
    found = store_here(spark, given, schema) if reads_here(spark) else None
    if found is not None:
        return found
    register(spark)
    reader = spark.read.format("penstock_store").options(**given)
    return (reader.schema(schema) if schema else reader).load()


def one_task_each(spark: Any, items: Sequence[T], work: Callable[[T], Iterable[Any]], columns: Any) -> Any:
    """A frame of what ``work`` yields for each item, in batches of ``columns`` (a schema); a task for every item.

    In a short session the driver does the work, before this returns.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        keep_loaded()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(items[number])

    if not items:
        return frame_here(spark, [], columns)
    if reads_here(spark):
        return frame_here(spark, (batch for item in items for batch in work(item)), columns)
    return spark.range(0, len(items), 1, len(items)).mapInArrow(run, columns)


def reads_little(config: Any) -> bool:
    """True if all that a job reads lies on this machine, in some megabytes; what is only allocated does not count.

    ``config``: the job's, whose fields say where. One with topics and no store reads them over the network.
    """
    roots = [root for name in _INPUTS for root in _listed(getattr(config, name, None))]
    reads_topics = hasattr(config, "topics") and not hasattr(config, "store")
    if not roots or reads_topics or any("://" in root for root in roots):
        return False
    total = 0
    for root in expand_roots(tuple(roots)):
        for folder, _, names in os.walk(os.path.join(root, COMMIT_LOG) if _is_store(root) else root):
            for name in names:
                with contextlib.suppress(OSError):  # deleted meanwhile
                    total += written(os.path.join(folder, name)).bytes
            if total > LITTLE_BYTES_MAX:
                return False
    return True


def _listed(value: Any) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _is_store(root: str) -> bool:
    return os.path.isdir(os.path.join(root, COMMIT_LOG))


def require_stores(roots: str | tuple[str, ...]) -> None:
    """Raises ConfigError if a local root is no directory, WrongStore if it has no log: told before Spark starts."""
    for root in expand_roots((roots,) if isinstance(roots, str) else roots):
        if "://" in root:
            continue
        if not os.path.isdir(root):
            raise ConfigError(f"{root}: no such directory")
        if not _is_store(root):
            raise WrongStore(f"{root} holds no store: there is no directory {root}/{COMMIT_LOG}")


def require_absent(job: str, output: str) -> None:
    """Raises ConfigError if there is something at a job's ``output``, as far as can be told without Spark."""
    try:
        files, inner = open_file_system(output)
        kind = files.get_file_info(inner).type
    except (ConfigError, OSError):  # Spark knows more file systems, and its configuration their credentials
        return
    if kind != fs.FileType.NotFound:
        raise ConfigError(f"{job}: output is {output!r}, which exists: name a directory that does not")


def local_path(path: str) -> str:
    """A path as Spark understands it: plain ones are of this machine's file system, not of a cluster's default one."""
    return path if "://" in path else f"file://{os.path.abspath(path)}"


def write_new(frame: Any, output: str) -> None:
    """Write the rows as Parquet to a directory that does not exist yet."""
    frame.write.mode("error").option("compression", "zstd").parquet(local_path(output))  # Connect knows no other word


def same_servers(name_server: str) -> str:
    """Nameservers in one order, however they are listed."""
    return ";".join(sorted(filter(None, (each.strip() for each in name_server.replace(",", ";").split(";")))))


def claim_checkpoint(job: str, checkpoint: str, between: Mapping[str, str]) -> None:
    """Keep in the checkpoint that it belongs to this job ``between`` these; whole or not at all.

    Where only Spark knows the file system, nothing is kept.
    Raises ConfigError: it belongs to another one; nothing was changed.
    """
    wanted = {"job": job, **between}
    path = f"{checkpoint.rstrip('/')}/{JOB_FILE}"
    try:
        folder = Folder(checkpoint)
        text = folder.read(JOB_FILE)
    except (ConfigError, OSError) as error:
        log.warning("checkpoint is not marked as the job's checkpoint=%s error=%s", checkpoint, error)
        return
    if text is None:
        folder.write(JOB_FILE, json.dumps(wanted, indent=2).encode())
        return
    try:
        kept = dict(json.loads(text))
    except (ValueError, TypeError):
        raise ConfigError(f"{job}: {path} is {text[:80]!r}: no record of a job: name another checkpoint") from None
    for name, value in wanted.items():
        if kept.get(name) != value:
            raise ConfigError(
                f"{job}: checkpoint {checkpoint} belongs to a job whose {name} is {kept.get(name)!r}, not {value!r}: "
                f"name a new one; if it is the same under another name, correct {path}"
            )


@contextlib.contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """Within the block the first SIGTERM or SIGINT sets the event, and a second does what it did before.

    So a job that follows ends its query and gives its report. In other threads than the main one signals stay as they
    are.
    """
    ended = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    former = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for each, handler in former.items():
            signal.signal(each, handler)

    def end(number: int, frame: object) -> None:
        ended.set()
        restore()

    for each in former:
        signal.signal(each, end)
    try:
        yield ended
    finally:
        restore()


def follow(query: Any, ended: threading.Event) -> None:
    """Return when the query has ended, or is stopped because of the event."""
    while not query.awaitTermination(FOLLOW_POLL_S):
        if ended.is_set():
            query.stop()
            return
