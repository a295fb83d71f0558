"""The lake: a Delta table of archived messages, each commit of which says what it holds of which log files.

::

    messages/_delta_log/00000000000000000007.json     the commits, which alone say what counts
    messages/dt=2026-03-01/<name>.parquet             Parquet files, sorted by topic, queue and offset

The table has the columns of messages (:mod:`..columns.schema`) and three that its files are partitioned by: ``dt``, the
day (UTC) of ``storeTimestamp``; ``broker``; and ``segment``, the log file. What a killed job leaves behind is in no
commit, so nobody sees it, and a later run removes it. A commit is written when its files are on the disk, as the
version behind the one that was read, which only one job can make; so a log file is archived once, whoever repeats it.

An entry (:mod:`.entries`) stands while the table has all of its files. What others take out of the table, as
``DeltaTable.repair`` does with files that are missing, is archived again, if the store still has it. The table keeps
all commits (``delta.logRetentionDuration`` is a hundred years), because the entries are in them.

Beside the table the job ``lag`` keeps its rows, in ``lag/``: see :mod:`..jobs.lag.files`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from pyarrow import fs

from penstock.proto.errors import ConfigError, Corrupt, StorageError

from ..columns.schema import STORE_COLUMNS
from ..spark.arrow_types import arrow_schema
from ..stores.files import Folder
from .entries import Entry, LakeFile, from_document, to_document

log = logging.getLogger(__name__)

TABLE = "messages"
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The day, as Spark names it, of messages whose store time is no time."""
_LOG = f"{TABLE}/_delta_log"
_FIELD = "penstock"
_PARTITIONS = {"dt": pa.date32(), "broker": pa.string(), "segment": pa.int64()}
_PATTERN = re.compile(r"[\[\]{}*?\\]")
"""What Spark takes for a pattern in a path."""
_UNKNOWN_TO_DELTA = re.compile(r"[?#\\]|%[0-9A-Fa-f]{2}")
"""What delta-rs loses of a local path, or takes for another sign, when it makes a URL of it."""


class Lake(Folder):
    """A lake at a path or URI; it need not exist yet."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._table: DeltaTable | None = None
        self._seen = -1  # the version up to which `_told` is read
        self._told: list[Entry] = []  # all entries of all commits, the newest first
        self._live: dict[str, tuple[str, int]] = {}  # the table's files, each with its place

    def mark_name(self, job: str) -> str:
        """What brokers call the archive that ``job`` keeps here, unless told otherwise; each lake has its own."""
        place = f"file://{self.path}" if self.is_local else self.root
        return f"{job}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"

    def require(self) -> None:
        """Raises ConfigError if there is no lake."""
        if self._opened() is None:
            raise ConfigError(f"{self.root}: no lake: it has no Delta table {TABLE}; make one with the job archive")

    def entries(self) -> list[Entry]:
        """The log files that the table has whole now, by broker and position; nothing where there is no table.

        Raises ConfigError: it is not this archive's table.
        Raises Corrupt: another program has changed its files. StorageError: it cannot be read.
        """
        self._refresh()
        standing: dict[tuple[str, int], Entry] = {}
        for entry in self._told:
            if entry.place not in standing and all(file.name in self._live for file in entry.files):
                standing[entry.place] = entry
        known = {file.name for entry in self._told for file in entry.files}
        foreign = min(self._live.keys() - known, default=None)
        if foreign is not None:
            raise Corrupt(
                f"{self.root}/{TABLE}/{foreign}: no archive has committed this file, so another program has written to "
                "the table, or compacted it: restore the version before, with deltalake's DeltaTable.restore"
            )
        return sorted(standing.values(), key=lambda entry: entry.place)

    def readable(self) -> list[Entry]:
        """What queries read: entries with those of their files that the table has, also where others took some out.

        Raises: as :meth:`entries`.
        """
        self.entries()
        held = (replace(entry, files=tuple(f for f in entry.files if f.name in self._live)) for entry in self._told)
        return sorted((entry for entry in held if entry.files), key=lambda entry: entry.place)

    def commit(self, entries: Sequence[Entry], statistics: Mapping[str, str]) -> list[Entry]:
        """Add these and their files, which are on the disk, to the table; those that the table took, when it has them.

        Left out are those in whose place one stands that they may not replace: the caller deletes their files. Files of
        one that is replaced leave the table in the same commit, and stay on the disk until :meth:`vacuum`.

        ``statistics``: what the table says about each file, by name; see the Delta protocol, Per-file Statistics.
        Raises StorageError: the table cannot be written.
        """
        left, done = list(entries), list[Entry]()
        while left:
            standing = {entry.place: entry for entry in self.entries()}
            left = [one for one in left if one.place not in standing or one.may_replace(standing[one.place])]
            occupied = set(self._live.values())
            fresh = [one for one in left if one.place not in occupied]
            part = fresh or left[:1]
            if part and self._commit(part, statistics, replaces=not fresh):
                done += part
                left = [one for one in left if one not in part]
        return done

    def _commit(self, entries: list[Entry], statistics: Mapping[str, str], *, replaces: bool) -> bool:
        """Make the next version of the table; False where another job has made it first. Of what replaces, only one."""
        now_ms = time.time_ns() // 1_000_000
        actions = [
            AddAction(
                path=file.name,
                size=file.size,
                partition_values={
                    "dt": None if file.day == NO_DAY else file.day,
                    "broker": entry.broker,
                    "segment": str(entry.segment),
                },
                modification_time=now_ms,
                data_change=True,
                stats=statistics.get(file.name, "{}"),
            )
            for entry in entries
            for file in entry.files
        ]
        broker, segment = entries[0].place
        with self._delta():
            table = self._opened()
            if table is None:
                self._create()
                return False  # another job may have added to it
            try:
                table.create_write_transaction(
                    actions,
                    "overwrite" if replaces else "append",
                    _schema(),
                    list(_PARTITIONS),
                    [("broker", "=", broker), ("segment", "=", str(segment))] if replaces else None,
                    commit_properties=CommitProperties({_FIELD: to_document(entries)}, max_commit_retries=0),
                )
            except CommitFailedError:
                table.update_incremental()
                if table.version() == self._seen:
                    raise
                return False
        self.sync_log()
        return True

    def _opened(self) -> DeltaTable | None:
        if self._table is not None:
            return self._table
        if self.is_local and _UNKNOWN_TO_DELTA.search(self.path):
            raise ConfigError(
                f"{self.root}: a lake's path has none of the signs ? # \\, nor % before two hexadecimal digits: name "
                "another directory"
            )
        if self.files.get_file_info(f"{self.path}/{_LOG}").type != fs.FileType.Directory:
            return None
        with self._delta():
            table = DeltaTable(self._uri())
            if table.metadata().partition_columns != list(_PARTITIONS):
                raise ConfigError(f"{self.root}/{TABLE}: another program's Delta table: name another lake")
        self._table = table
        return table

    def _create(self) -> None:
        self.files.create_dir(f"{self.path}/{TABLE}", recursive=True)
        settings = {"delta.logRetentionDuration": "interval 36500 days"}
        try:
            DeltaTable.create(
                self._uri(),
                _schema(),
                mode="error",
                partition_by=list(_PARTITIONS),
                configuration=settings,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(self._uri()):  # else another job made it first
                raise

    def _uri(self) -> str:
        return Path(self.path, TABLE).as_uri() if self.is_local else f"{self.root}/{TABLE}"

    def _refresh(self) -> None:
        """Read the commits that are new, and which files the table has."""
        table = self._opened()
        if table is None:
            return
        with self._delta():
            table.update_incremental()
            version = table.version()
            if version == self._seen:
                return
            if table.protocol().min_reader_version != 1:
                raise Corrupt(
                    f"{self.root}/{TABLE}: another program has given the table features that readers of its Parquet "
                    "files do not see, as deletion vectors: restore the version before, with DeltaTable.restore"
                )
            commits = table.history(version - self._seen)
            live = pa.table(table.get_add_actions(flatten=True))
        told = []
        for commit in commits:
            if commit["version"] > self._seen and _FIELD in commit:
                told += from_document(commit[_FIELD], f"{self.root}/{_LOG}/{commit['version']:020d}.json")
        places = zip(live["partition.broker"].to_pylist(), live["partition.segment"].to_pylist(), strict=True)
        self._live = dict(zip(live["path"].to_pylist(), places, strict=True))
        self._told = [*told, *self._told]
        self._seen = version

    @contextmanager
    def _delta(self) -> Iterator[None]:
        """What delta-rs says becomes an error that names the lake."""
        try:
            yield
        except (DeltaError, OSError) as error:
            raise StorageError(f"{self.root}/{TABLE}: the Delta table cannot be read or written: {error}") from error

    def sync_log(self) -> None:
        """Have the disk keep all commits: retention deletes what they say is here. delta-rs syncs nothing itself."""
        if self.is_local and self._table is not None:
            for name in os.listdir(f"{self.path}/{_LOG}"):
                self.sync(f"{_LOG}/{name}")
            self.sync_folders(_LOG)

    def paths_of(self, files: Iterable[LakeFile]) -> list[str]:
        """Parquet files of the table as Spark takes them: signs of patterns in the lake's path stand for themselves."""
        prefix = _PATTERN.sub(r"\\\g<0>", self.root if "://" in self.root else f"file://{self.root}")
        return [f"{prefix}/{TABLE}/{file.name}" for file in files]

    def require_files(self, entries: Iterable[Entry]) -> None:
        """Raises Corrupt if a file of these is not there with the bytes that it should have."""
        files = [file for entry in entries for file in entry.files]
        infos = self.files.get_file_info([f"{self.path}/{TABLE}/{file.name}" for file in files])
        for file, info in zip(files, infos, strict=True):
            wrong = wrong_size(info, file.size)
            if wrong:
                raise Corrupt(f"{self.root}/{TABLE}/{file.name}: {wrong}: {REMEDY}")

    def vacuum(self, hours: int) -> None:
        """Delete files that are in no version, or left the table, so long ago. Another job may do the same."""
        table = self._opened()
        if table is None:
            return
        try:
            table.update_incremental()
            if table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True):
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        except (DeltaError, OSError) as error:
            log.warning("files that do not count are left lake=%s error=%s", self.root, error)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files that no commit names."""
        for name in names:
            self.files.delete_file(f"{self.path}/{TABLE}/{name}")


REMEDY = "restore it, or delete it, have deltalake's DeltaTable.repair take it out of the table, and archive again"
"""What to do about a file that is not whole."""


def wrong_size(info: fs.FileInfo, size: int) -> str:
    """What is wrong with a file that has to have so many bytes; nothing where it is empty."""
    if info.type != fs.FileType.File:
        return "the file is missing"
    return "" if info.size == size else f"the file has {info.size} bytes where the table says {size}"


def _schema() -> Schema:
    partitions = [pa.field(name, of) for name, of in _PARTITIONS.items()]
    return Schema.from_arrow(pa.schema([*arrow_schema(STORE_COLUMNS), *partitions]))
