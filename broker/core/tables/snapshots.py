"""Snapshots of the derived tables under ``<root>/config``, so that a start need not read the whole log.

| File | Holds | Shape |
|---|---|---|
| ``topics.json`` | topics | RocketMQ's |
| ``subscriptionGroup.json`` | consumer groups | RocketMQ's |
| ``consumerOffset.json`` | committed offsets | RocketMQ's, queue ids quoted: valid JSON, and fastjson reads it too |
| ``consumerFilter.json`` | SQL92 subscriptions | RocketMQ's |
| ``producerSequence.json`` | the duplicate table | own |
| ``queueEnds.json`` | ends of queues without records | own |
| others | tables of features | own |

Each has one more top-level field, ``logPosition``: the file holds every change recorded below that physical
offset, and some above, as a master applies its own records when it appends them: replay applies them again without
effect. The last field, ``newestRecord``, is where the newest of those records begins: a file that holds one behind
the place where the log is cut must go. RocketMQ ignores the fields and drops them when it writes; a file without
them was written by RocketMQ, holds everything, and the master then records its content in the log, so that
replicas get it too.

The log is synced first, up to all that a file knows: behind a power cut no file knows more than the log. Then
a file is written beside the old one and synced, the old one becomes ``<file>.bak``, the new one takes its
name. A file that is missing or damaged is read from its ``.bak``. When that is damaged as well, the table is
rebuilt from the log if the log still begins at 0, else the start fails with :class:`Corrupt`.
Source: RocketMQ ``ConfigManager#persist``; differs: at every moment one complete file has a known name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.formats.rocketmq_config import parse_rocketmq_json
from penstock.proto.errors import Corrupt, StorageError
from penstock.runtime.clock import SteadyClock
from penstock.runtime.whole_files import DAMAGES, damage, replace_file, sync_directory

from .table import Table
from .tables import Tables
from .uninterrupted import to_its_end

log = logging.getLogger(__name__)

LOG_POSITION: Final = "logPosition"
NEWEST_RECORD: Final = "newestRecord"
INTERVAL_S: Final = 5.0
COST_SHARE: Final = 0.02  # of the process's time: a huge table is written less often
LAG_BYTES_MAX: Final = 256 << 20
"""A file of a table that did not change is written again when its ``logPosition`` is so far behind: a start reads the
log from the oldest of these positions."""
LAG_BYTES_MAX_AT_END: Final = 16 << 20
"""The same for the end of the process; what is left is read in a few hundredths of a second."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load found.

    Replay the log from ``replay_from``. ``imported``: RocketMQ wrote the files. ``ahead``: the files know more
    than a log that lost its end in a crash; they must be written anew before that log grows over their position.
    """

    replay_from: int
    imported: bool
    ahead: bool = False


@dataclass(slots=True)
class _File:
    """What is on disk of one table."""

    table: Table
    counter: int = 0  # of dataVersion
    written: int = 0  # value of the table's changes that is on disk
    not_before: float = 0.0  # monotonic time of the next write
    position: int = 0  # logPosition of what is on disk

    @property
    def name(self) -> str:
        return self.table.file_name

    @property
    def is_written(self) -> bool:
        """True if the disk has every change of the table."""
        return self.table.changes == self.written


class Snapshots:
    """Reads and writes the snapshot files of one broker; event loop only."""

    def __init__(self, directory: Path, tables: Tables, sync_log: Callable[[], None] = lambda: None) -> None:
        """``sync_log()`` returns when the disk has the log as it is; called by threads."""
        self.directory = directory
        self.sync_log = sync_log
        self._tables = tables
        self._log_end = 0
        self.writing = asyncio.Lock()
        """Held while a file is written; whoever changes tables and files together holds it as well."""
        self.is_current = True
        """The tables are what the log says. While they are not, as behind a cut, nothing of them is written, and no
        file counts as one that covers anything of the log."""
        self._steady = SteadyClock(int(time.time() * 1000), time.monotonic())
        """What was idle for long is told by this one: a wall clock that is set ahead for a moment ends nothing."""
        self._files = [_File(table) for table in tables.all]
        tables.files = self

    def load(self, log_min: int, log_end: int, *, log_has_all: bool) -> Loaded:
        """Fill the empty tables from the files and say from where the log must be replayed.

        ``log_has_all``: this store has always been Penstock's, so that a log that begins at 0 can replace
        damaged files.

        Raises Corrupt: a file and its ``.bak`` are damaged and the log cannot replace them.
        """
        self._log_end = log_end
        documents = {file.name: self._read(file, log_min, log_has_all) for file in self._files}
        imported = any(d is not None and LOG_POSITION not in d for d in documents.values())
        replay_from, ahead = log_end, False
        for file in self._files:
            document = documents[file.name]
            # Missing beside RocketMQ's files: RocketMQ's log has no such records, nothing to replay.
            position = log_end if imported else log_min
            if document is not None:
                position = int(document.get(LOG_POSITION, log_end))
                newest = int(document.get(NEWEST_RECORD, -1))
                file.table.newest_record = max(file.table.newest_record, newest)
                ahead = ahead or newest >= log_end  # it holds what the log has lost
                if position > log_end:
                    log.warning(
                        "snapshot is ahead of the log path=%s position=%d log_end=%d",
                        self.directory / file.name,
                        position,
                        log_end,
                    )
                    position, ahead = log_end, True
            else:
                file.written = -1  # write it soon, though it holds nothing: without it a start reads the whole log
            file.table.base = position
            file.position = position
            replay_from = min(replay_from, max(position, log_min))
        if imported:
            for file in self._files:
                file.table.import_from(self.directory)
        return Loaded(replay_from, imported, ahead)

    async def run(self, position: Callable[[], int]) -> None:
        """Write what changed, or is far behind, every 5 s; everything below ``position()`` is in the tables."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.write_changed(position)

    def covered(self) -> int:
        """Everything recorded in the log below this is in the files on disk."""
        if not self.is_current:
            return 0
        return min((file.position for file in self._files if not file.is_written), default=1 << 62)

    async def write_changed(self, position: Callable[[], int], *, at_once: bool = False) -> None:
        """Write the files whose tables changed, leaving the event loop free between pieces and while syncing.

        ``position`` is asked when nobody else writes: a log that was cut meanwhile is shorter than before. A huge
        table is written more seldom, unless ``at_once``.
        """
        async with self.writing:
            if self.is_current:
                await self._write_changed(position(), at_once)

    async def _write_changed(self, position: int, at_once: bool) -> None:
        for table in self._tables.all:
            table.forget_deleted(position)
        self._tables.expire(self._steady.now_ms(int(time.time() * 1000), time.monotonic()))
        for file in self._files:
            started = time.monotonic()
            changes = file.table.changes
            is_current = file.is_written and position - file.position < LAG_BYTES_MAX
            if is_current or (started < file.not_before and not at_once):
                continue
            pieces = []
            for piece in self._document(file, position):
                pieces.append(piece)
                await asyncio.sleep(0)
            try:
                # No cancelling ends the thread: it must not write on beside the next writer of the file.
                await to_its_end(asyncio.to_thread(self._replace, file.name, "".join(pieces)))
            except (OSError, StorageError) as error:
                # Only the next start gets longer by it: the log has everything.
                log.error("snapshot not written path=%s error=%s", self.directory / file.name, error)
                continue
            file.written, file.position = changes, position
            file.not_before = time.monotonic() + (time.monotonic() - started) / COST_SHARE

    def write_all(self, position: int) -> None:
        """Write every file that changed or is far behind, at once: for the end of the process."""
        if not self.is_current:
            return  # the next start makes them from the older files and the log
        for file in self._files:
            is_current = file.is_written and position - file.position < LAG_BYTES_MAX_AT_END
            if not is_current or not (self.directory / file.name).exists():
                try:
                    self._write(file, position)
                except (OSError, StorageError) as error:
                    log.error("snapshot not written path=%s error=%s", self.directory / file.name, error)

    def write_anew(self, position: int) -> None:
        """Write every file and forget the ones before, whose positions mean nothing in this log any more."""
        for file in self._files:
            self._write(file, position)
            (self.directory / f"{file.name}.bak").unlink(missing_ok=True)

    def adopt(self, other: Snapshots) -> None:
        """The tables are those that ``other`` has read, and the files as it has found them, until they are written."""
        for mine, theirs in zip(self._files, other._files, strict=True):
            mine.counter, mine.position, mine.written = theirs.counter, theirs.position, -1
        self._log_end = other._log_end

    def outlive(self, position: int) -> bool:
        """True if :meth:`delete_behind` would leave a file of each table."""
        return all(
            any(
                path.exists() and not _knows_more(_reaching_behind(path, position), position)
                for path in self._both(file)
            )
            for file in self._files
        )

    def delete_behind(self, position: int) -> None:
        """Delete files that hold what a record at or behind ``position`` says, and have the others say that they
        reach to ``position``, where the log will end; durable on return.

        :attr:`writing` is held.

        Raises OSError: perhaps not all is done.
        """
        changed = False
        for file in self._files:
            for path in self._both(file):
                document = _reaching_behind(path, position)
                if document is None:
                    continue
                if _knows_more(document, position):
                    path.unlink()
                    log.info("snapshot of a log's lost end deleted path=%s", path)
                else:
                    replace_file(path, json.dumps({**document, LOG_POSITION: position}, ensure_ascii=False).encode())
                    log.info("snapshot reaches to the log's new end path=%s position=%d", path, position)
                file.written, file.position = -1, 0  # if the cut does not come about, it is written anew
                changed = True
        if changed:
            sync_directory(self.directory)

    def _both(self, file: _File) -> tuple[Path, Path]:
        return self.directory / file.name, self.directory / f"{file.name}.bak"

    def _document(self, file: _File, position: int) -> Iterator[str]:
        file.counter += 1
        version = {"counter": file.counter, "stateVersion": 0, "timestamp": int(time.time() * 1000)}
        yield f'{{\n\t"dataVersion":{json.dumps(version)},\n\t"{LOG_POSITION}":{position},\n'
        yield from file.table.pieces()
        yield f',\n\t"{NEWEST_RECORD}":{file.table.newest_record}\n}}\n'  # last: the tables change meanwhile

    def _write(self, file: _File, position: int) -> None:
        self._replace(file.name, "".join(self._document(file, position)))
        file.written, file.position = file.table.changes, position

    def _replace(self, name: str, text: str) -> None:
        self.sync_log()
        replace_file(self.directory / name, text.encode(), keep_as=self.directory / f"{name}.bak")

    def _read(self, file: _File, log_min: int, log_has_all: bool) -> Document | None:
        damaged: list[str] = []
        for path in self._both(file):
            try:
                text = path.read_text(encoding="utf-8")
                document = parse_rocketmq_json(text)
                for number in (LOG_POSITION, NEWEST_RECORD):
                    int(document.get(number, 0))
                counter = int(document.get("dataVersion", {}).get("counter", 0))
                file.table.load(document, self._log_end)
            except FileNotFoundError:
                continue
            except DAMAGES as error:
                log.warning("snapshot damaged path=%s error=%s", path, damage(error))
                damaged.append(f"{path}: {damage(error)}")
                continue
            file.counter = counter
            if damaged:
                log.warning("snapshot taken from the one before it path=%s", path)
            return document
        if damaged and not (log_has_all and log_min == 0):
            raise Corrupt(
                f"{'; '.join(damaged)}: kept for inspection; the log begins at {log_min} and cannot replace it: "
                "restore the file, or delete it to lose its content",
                path=str(self.directory / file.name),
            )
        if damaged:
            log.warning("table is rebuilt from the log from=%d file=%s", log_min, file.name)
        return None


def _knows_more(document: Document | None, position: int) -> bool:
    """True of a snapshot that holds what a record at or behind ``position`` says."""
    return document is not None and int(document.get(NEWEST_RECORD, position)) >= position


def _reaching_behind(path: Path, position: int) -> Document | None:
    """A snapshot that says something of the log at or behind ``position``.

    One that cannot be read is left for whoever loads it; one that RocketMQ wrote follows from no record.
    """
    try:
        document = parse_rocketmq_json(path.read_text(encoding="utf-8"))
        if LOG_POSITION not in document:
            return None
        is_behind = int(document[LOG_POSITION]) > position or int(document.get(NEWEST_RECORD, position)) >= position
        return document if is_behind else None
    except (FileNotFoundError, ValueError, OverflowError, RecursionError, TypeError):
        return None
