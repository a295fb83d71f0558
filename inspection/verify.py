"""The whole check of a store: log, queues, index, checkpoint, in one pass over the log."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock.formats.checkpoint import Standard
from penstock.formats.directory import CHECKPOINT, CONSUME_QUEUE, INDEX

from .directory import StoreDirectory
from .findings import Findings
from .index.check import IndexCheck, Missing, Surplus
from .log.model import TIME_MIN, Damage, OffsetJump, Progress
from .log.reader import LogReader
from .messages import RecordReader
from .queues.check import QueueCheck
from .queues.rest import QueueRest
from .queues.table import QueueTable
from .side_files import load_checkpoint, load_epochs, load_topics

TIME_MAX = 1 << 62
WRONG_MAX = 100
"""Wrong index entries told one by one."""


@dataclass(slots=True)
class Verification:
    """What was checked, and what was found."""

    findings: Findings
    log_start: int = 0
    log_end: int = 0
    log_files: int = 0
    bytes: int = 0
    records: int = 0
    queues: int = 0
    keys: int = 0
    index_entries: int = 0
    seconds: float = 0.0

    def as_document(self) -> dict[str, Any]:
        """As ``penstock store verify --json`` prints it."""
        document = {name: getattr(self, name) for name in self.__slots__ if name != "findings"}
        document["seconds"] = round(self.seconds, 3)
        document["bytes_per_s"] = round(self.bytes / self.seconds) if self.seconds else 0
        document["notes"] = [finding._asdict() for finding in self.findings.notes]
        document["problems_left_out"] = self.findings.problems_left_out
        document["ok"] = self.findings.ok
        document["problems"] = [finding._asdict() for finding in self.findings.problems]
        return document


def verify(store: StoreDirectory, progress: Progress | None = None) -> Verification:
    """Check everything. Nothing is written; beside a running broker the moving end is not held against it."""
    return _Verifier(store).run(progress)


class _Verifier:
    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._findings = store.findings
        # In this order: what a running broker writes later is then behind what is compared with it.
        self._aborted = store.aborted
        checkpoint = load_checkpoint(store.root, self._findings)
        self._checkpoint = checkpoint or Standard()
        self._settled_ms = checkpoint.logics_msg_timestamp if checkpoint else TIME_MAX
        self._epochs = load_epochs(store.root, self._findings)
        self._topics = load_topics(store.root, self._findings)
        self._table = QueueTable(frozenset(topic for topic, _ in store.batch_queues))
        self._queues = QueueCheck(store, self._table)
        self._index = IndexCheck(store)
        self._max_time = TIME_MIN

    def run(self, progress: Progress | None) -> Verification:
        started = time.perf_counter()
        reader = LogReader(self._store, self._table, progress=progress)
        told = 0
        for batch in reader.read():
            jumps = reader.jumps[told:]
            told = len(reader.jumps)
            restarts = {jump.slot: jump.physical_offset for jump in jumps if jump.queue_offset == 0}
            for slot in restarts:
                self._queues.restart(slot)
            if len(batch.entries):
                self._max_time = max(self._max_time, int(batch.entries["store_timestamp"].max()))
            self._queues.take(batch.entries, restarts)
            self._index.take(batch.keys)
        self._index.finish(reader.tail.end)
        self._judge(reader)
        return Verification(
            self._findings,
            log_start=self._store.log_start,
            log_end=reader.tail.end,
            log_files=len(self._store.segments),
            bytes=reader.tail.end - self._store.log_start,
            records=reader.records,
            queues=len(self._table),
            keys=self._index.keys,
            index_entries=self._index.entries,
            seconds=time.perf_counter() - started,
        )

    def _judge(self, reader: LogReader) -> None:
        checkpoint, aborted = self._checkpoint, self._aborted
        max_time = max(self._max_time, reader.last_time)
        loose_end = aborted and max_time >= checkpoint.physic_msg_timestamp and not reader.tail.full
        for damage in reader.damages:
            self._tell_damage(damage)
        for jump in reader.jumps:
            self._tell_jump(jump, reader)
        self._tell_tail(reader, loose_end=loose_end)
        self._queues.finish(self._settled_ms, aborted=aborted)
        self._tell_absent_queues()
        rest = QueueRest(self._store, reader.tail.end, loose_end=loose_end)
        rest.check(self._table, self._queues)
        rest.check_batches(reader.batch_units)
        for slot, delay in self._queues.delays.items():
            topic, queue_id = self._table.names[slot]
            text = f"{topic} {queue_id}: level {queue_id + 1} is {delay} ms here, not RocketMQ's default"
            self._findings.note(self._store.root / CONSUME_QUEUE, None, text)
        self._tell_index(reader.tail.end, loose_end=loose_end)
        if reader.records:
            self._tell_checkpoint(reader.tail.end, max_time, loose_end=loose_end)

    def _log_place(self, physical: int) -> tuple[object, int]:
        segment = self._store.segment_at(physical)
        if segment is not None:
            return segment.path, physical - segment.start
        return self._store.log_directories[0], physical

    def _tell_damage(self, damage: Damage) -> None:
        path, position = self._log_place(damage.start)
        if self._store.segment_at(damage.start) is None and damage.end > damage.start:
            self._findings.problem(path, damage.start, damage.reason)
            return
        lost = f"; {damage.end - damage.start} bytes up to the next sound record" if damage.lost else ""
        self._findings.problem(path, position, f"{damage.reason}{lost}")

    def _tell_jump(self, jump: OffsetJump, reader: LogReader) -> None:
        topic, queue_id = self._table.names[jump.slot]
        path, position = self._log_place(jump.physical_offset)
        text = f"{topic} {queue_id}: queue offset {jump.queue_offset} follows {jump.expected - 1}"
        expected = True
        if jump.queue_offset == 0:
            text = f"{topic} {queue_id} begins anew at queue offset 0: the topic was deleted and made again"
        elif jump.queue_offset > jump.expected and reader.lost_before(jump.physical_offset):
            text = f"{topic} {queue_id}: queue offsets {jump.expected} to {jump.queue_offset - 1} lay in damaged bytes"
        else:
            expected = False
        self._findings.tell(path, position, text, expected=expected)

    def _tell_tail(self, reader: LogReader, *, loose_end: bool) -> None:
        tail = reader.tail
        if tail.reason:
            path, position = self._log_place(tail.end)
            what = "torn tail behind the checkpoint:" if loose_end else "the log ends with what is"
            self._findings.tell(path, position, f"{what} {tail.reason}", expected=loose_end)
        if tail.leftover_at is not None:
            path, position = self._log_place(tail.leftover_at)
            text = f"bytes of records that were cut off lie behind the log's end {tail.end}"
            self._findings.note(path, position, text)

    def _tell_absent_queues(self) -> None:
        root = self._store.root / CONSUME_QUEUE
        absent = self._queues.absent(self._settled_ms, aborted=self._aborted)
        if absent and not self._store.queues:
            text = f"no queues: {sum(absent.values())} entries of {len(absent)} queues should be there"
            self._findings.problem(root, None, text)
            return
        for (topic, queue_id), count in absent.items():
            path = root / topic / str(queue_id)
            gone = topic.startswith("%LMQ%") or (self._topics is not None and topic not in self._topics)
            deleted = f"no queue for {count} records: the topic is not configured, it was deleted"
            text = deleted if gone else f"missing: {count} entries should be in it"
            self._findings.tell(path, None, text, expected=gone)

    def _tell_index(self, log_end: int, *, loose_end: bool) -> None:
        directory = self._store.root / INDEX
        if not self._store.index_files:
            settled = [each for each in self._index.missing if not self._is_behind(each)]
            if self._index.keys and self._aborted and not settled:
                self._findings.note(directory, None, f"{self._index.keys} keys are not written yet")
            elif self._index.keys and (directory.exists() or self._checkpoint.index_msg_timestamp > 0):
                text = f"no index files: {self._index.keys} keys should be in them"
                self._findings.problem(directory, None, text)
            elif self._index.keys:
                self._findings.note(directory, None, "there is no index: it is switched off, or was deleted")
            return
        # A change of master may have cut the log where the second epoch begins.
        cut = self._epochs[1].start if len(self._epochs) > 1 else None
        kept: list[str] = []
        with closing(RecordReader(self._store)) as reader:
            for each in self._index.surplus:
                kept.append(self._judge_surplus(reader, each, cut))
                if kept.count("wrong") == WRONG_MAX:
                    break
        if kept.count("again"):
            text = f"{kept.count('again')} entries stand there twice: a broker repeats the last record when it starts"
            self._findings.note(directory, None, text)
        stale = kept.count("stale") + self._index.behind
        if self._index.behind and not loose_end and cut is None:
            text = f"{self._index.behind} entries point behind the log's end {log_end}"
            self._findings.problem(directory, None, text)
        elif stale:
            text = f"{stale} entries are of records that were cut off the log, or came since it was read"
            self._findings.note(directory, None, text)
        left_out = len(self._index.surplus) - len(kept) + self._index.surplus_left_out
        if left_out:
            self._findings.problem(directory, None, f"and up to {left_out} more entries without a key")
        for missing in self._index.missing:
            self._judge_missing(missing, cut if stale else None)

    def _judge_surplus(self, reader: RecordReader, entry: Surplus, cut: int | None) -> str:
        stored = reader.find(entry.physical_offset)
        if entry.seconds_wrong:
            text = f"the entry's time is not that of its record at {entry.physical_offset}"
            self._findings.problem(entry.path, entry.position, text)
            return "wrong"
        if stored is not None and entry.key_hash in stored.key_hashes():
            return "again"
        if cut is not None and entry.physical_offset >= cut:
            return "stale"
        what = "the record has no such key" if stored is not None else "no record lies there"
        text = f"the entry with key hash {entry.key_hash} points to {entry.physical_offset}: {what}"
        self._findings.problem(entry.path, entry.position, text)
        return "wrong"

    def _is_behind(self, missing: Missing) -> bool:
        """True if the keys lie behind everything that the index has, and behind the checkpoint."""
        last = missing.physical_offset > self._index.last_indexed
        return last and missing.store_timestamp >= self._checkpoint.index_msg_timestamp

    def _judge_missing(self, missing: Missing, cut: int | None) -> None:
        places = f"{missing.keys} keys of the records {missing.physical_offset} to {missing.last_offset}"
        directory = self._store.root / INDEX
        if self._aborted and self._is_behind(missing):
            self._findings.note(directory, None, f"{places} are behind the checkpoint and not written yet")
        else:
            was_cut = cut is not None and missing.physical_offset >= cut
            what = "have no entry: records cut off there before have them" if was_cut else "are not in the index"
            self._findings.tell(directory, None, f"{places} {what}", expected=was_cut)

    def _tell_checkpoint(self, log_end: int, max_time: int, *, loose_end: bool) -> None:
        path = self._store.root / CHECKPOINT
        fields = self._checkpoint._asdict()
        for position, (name, value) in enumerate(fields.items()):
            if name.endswith("timestamp") and value > max_time:
                text = f"{name} is {value}, but the log's last record is of {max_time}: later ones were there"
                self._findings.tell(path, 8 * position, text, expected=loose_end)
        if self._checkpoint.confirm_phy_offset > log_end and not self._aborted:
            text = f"confirm_phy_offset is {self._checkpoint.confirm_phy_offset}, the log ends at {log_end}"
            self._findings.problem(path, 32, text)
