"""Whether consume queues hold what the log demands: entry by entry, in large steps per queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from penstock.formats.directory import CONSUME_QUEUE
from penstock.formats.queue_entry import ADDRESS_BASE, ENTRY, ENTRY_BYTES, FILLER_SIZE, HASH_MIN
from penstock.proto.names import SCHEDULE_TOPIC

from ..directory import QueueFiles, StoreDirectory
from ..files import Bytes, Unreadable
from ..log.model import Rows, SecondLooks
from .table import Longs, QueueTable, runs
from .view import read_segments

EXTENSION_HEAD = np.dtype([("size", ">i2"), ("tags_code", ">i8"), ("store_time", ">i8"), ("bits", ">i2")])
assert EXTENSION_HEAD.itemsize == 20
RANGES_MAX = 20
"""Wrong stretches told per queue; more are counted."""


class Match(IntEnum):
    """What an entry is to the one that the log demands."""

    EQUAL = 0
    MISSING = 1  # nothing is there
    BLANK = 2  # the filling in front of a queue that begins late
    OTHER = 3  # it points to another record
    TAGS = 4  # it points to the right record, with another tags code


def compare(rows: Rows, found: Rows) -> Bytes:
    """The :class:`Match` of each of the entries ``found`` with its row."""
    same = (found["physical_offset"] == rows["physical_offset"]) & (found["size"] == rows["size"])
    matches: Bytes = np.where(same, Match.EQUAL, Match.OTHER).astype(np.uint8)
    matches[same & (found["tags_code"] != rows["tags_code"])] = Match.TAGS
    nowhere = ~same & (found["physical_offset"] == 0)
    matches[nowhere & (found["size"] == 0)] = Match.MISSING
    matches[nowhere & (found["size"] == FILLER_SIZE)] = Match.BLANK
    return matches


@dataclass(slots=True)
class _State:
    """What is known of one queue so far."""

    first: int  # lowest offset that the log has
    next: int
    missing: int = -1  # where the entries that are missing at its end begin
    missing_time: int = 0
    ranges: list[tuple[int, str]] = field(default_factory=list)
    left_out: int = 0


class QueueCheck:
    """Compares batches of demanded entries with the queues' files."""

    def __init__(self, store: StoreDirectory, table: QueueTable) -> None:
        self._store = store
        self._table = table
        self._states: dict[int, _State] = {}
        self.delays: dict[int, int] = {}  # of the schedule topic's queues, where not the default
        self._second_looks = SecondLooks(store)

    def restart(self, slot: int) -> None:
        """The queue begins anew at offset 0: its topic was deleted and made again, the old queue is gone."""
        self._states.pop(slot, None)

    def take(self, entries: Rows, restarts: dict[int, int]) -> None:
        """Check the entries of a batch. ``restarts``: per slot where in the log it last began anew."""
        for slot, run in runs(entries):
            old = int(np.searchsorted(run["physical_offset"], restarts[slot])) if slot in restarts else 0
            if old:
                self.restart(slot)  # these are of a queue that was deleted since
            if old < len(run):
                self._take_run(run[old:], slot)

    def _take_run(self, rows: Rows, slot: int) -> None:
        offset = int(rows["queue_offset"][0])
        state = self._states.setdefault(slot, _State(offset, offset))
        state.next = offset + len(rows)
        queue = self._store.queues.get(self._table.names[slot])
        found: Rows = np.zeros(len(rows), ENTRY)
        while True:
            if queue is not None and offset >= 0:
                try:
                    found = read_segments(queue.segments, offset * ENTRY_BYTES, len(rows) * ENTRY_BYTES).view(ENTRY)
                except Unreadable as error:
                    self._keep(state, offset, str(error))
                    return
            matches = self._forgive(rows, compare(rows, found), found, slot)
            wrong = bool(np.any((matches != Match.EQUAL) & (matches != Match.MISSING)))
            if not (wrong and self._second_looks.is_due((slot, offset))):
                break
        if matches.any():
            self._keep_runs(rows, matches, found, offset, state)
        elif state.missing >= 0:
            self._close_missing(state, offset)

    def _forgive(self, rows: Rows, matches: Bytes, found: Rows, slot: int) -> Bytes:
        """The matches without those whose tags code is right in another way."""
        differing = np.flatnonzero(matches == Match.TAGS)
        if not len(differing):
            return matches
        codes = found["tags_code"][differing].astype(np.int64)
        topic, queue_id = self._table.names[slot]
        extension = self._store.extensions.get((topic, queue_id))
        addressed = np.flatnonzero(codes < HASH_MIN)
        if extension is not None and len(addressed):
            chosen = differing[addressed]
            right = self._extensions_right(extension, codes[addressed], rows[chosen])
            matches[chosen[right]] = Match.EQUAL
        delays = codes - rows["store_timestamp"][differing]
        delay = int(delays[0])
        if topic == SCHEDULE_TOPIC and delay > 0 and delay % 1000 == 0:
            delay = self.delays.setdefault(slot, delay)
            matches[differing[delays == delay]] = Match.EQUAL
        return matches

    def _extensions_right(self, extension: QueueFiles, codes: Longs, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of the units that the codes point to hold the rows' tags codes and store times."""
        addresses = codes - np.int64(ADDRESS_BASE)
        right: npt.NDArray[np.bool_] = np.zeros(len(addresses), np.bool_)
        if not extension.segments:
            return right
        start = extension.segments[0].start
        end = extension.segments[-1].start + extension.segments[-1].size
        inside = np.flatnonzero((addresses >= start) & (addresses <= end - EXTENSION_HEAD.itemsize))
        if not len(inside):
            return right
        low = int(addresses[inside].min())
        try:
            data = read_segments(extension.segments, low, int(addresses[inside].max()) + EXTENSION_HEAD.itemsize - low)
        except Unreadable:
            return right
        places = (addresses[inside] - low)[:, None] + np.arange(EXTENSION_HEAD.itemsize)
        heads = np.ascontiguousarray(data[places]).view(EXTENSION_HEAD)[:, 0]
        right[inside] = (
            (heads["tags_code"] == rows["tags_code"][inside])
            & (heads["store_time"] == rows["store_timestamp"][inside])
            & (heads["size"] == heads["bits"] + EXTENSION_HEAD.itemsize)
        )
        return right

    def _keep_runs(self, rows: Rows, matches: Bytes, found: Rows, offset: int, state: _State) -> None:
        """Keep stretches of equal matches; what is missing at the end may yet turn out to be the queue's end."""
        edges = np.flatnonzero(np.diff(matches)) + 1
        for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(matches)], strict=True):
            match = Match(int(matches[start]))
            if match == Match.MISSING:
                if state.missing < 0:
                    state.missing = offset + start
                    state.missing_time = int(rows["store_timestamp"][start])
                continue
            if state.missing >= 0:
                self._close_missing(state, offset + start)
            if match != Match.EQUAL:
                self._keep(state, offset + start, _describe(match, rows[start:end], found[start:end]))

    def _close_missing(self, state: _State, end: int) -> None:
        """The missing entries are a hole: entries follow."""
        self._keep(state, state.missing, f"entries {state.missing} to {end - 1} are missing, and others follow")
        state.missing = -1

    @staticmethod
    def _keep(state: _State, offset: int, text: str) -> None:
        if len(state.ranges) < RANGES_MAX:
            state.ranges.append((offset, text))
        else:
            state.left_out += 1

    def finish(self, settled_ms: int, *, aborted: bool) -> None:
        """Tell what was found, and look at entries that the log knows nothing of.

        ``settled_ms``: with ``aborted``, entries of records stored then or later may still be missing.
        """
        findings = self._store.findings
        lagging = lagging_queues = 0
        for slot, state in self._states.items():
            name = self._table.names[slot]
            for offset, text in state.ranges:
                path, place = self._place(name, offset)
                findings.problem(path, place, text)
            if state.left_out:
                path, _ = self._place(name, 0)
                findings.problem(path, None, f"and {state.left_out} more wrong stretches")
            if state.missing >= 0 and aborted and state.missing_time >= settled_ms:
                lagging += state.next - state.missing
                lagging_queues += 1
            elif state.missing >= 0 and name in self._store.queues:
                path, place = self._place(name, state.missing)
                text = f"entries {state.missing} to {state.next - 1} are missing at the queue's end"
                findings.problem(path, place, text)
        if lagging:
            text = f"{lagging} entries of {lagging_queues} queues are behind the checkpoint and not written yet"
            findings.note(self._store.root / CONSUME_QUEUE, None, text)

    def first_and_next(self, slot: int) -> tuple[int, int] | None:
        """The offsets ``[first, next)`` that the log has of a queue."""
        state = self._states.get(slot)
        return None if state is None else (state.first, state.next)

    def absent(self, settled_ms: int, *, aborted: bool) -> dict[tuple[str, int], int]:
        """Queues that should have a directory and have none, and the number of entries that they should have."""
        return {
            self._table.names[slot]: state.next - state.first
            for slot, state in self._states.items()
            if self._table.names[slot] not in self._store.queues and not (aborted and state.missing_time >= settled_ms)
        }

    def _place(self, name: tuple[str, int], offset: int) -> tuple[object, int]:
        """File and position in it of an entry; the queue's directory where it has no such file."""
        queue = self._store.queues.get(name)
        at = offset * ENTRY_BYTES
        if queue is None:
            return self._store.root / CONSUME_QUEUE / name[0] / str(name[1]), at
        for segment in queue.segments:
            if segment.start <= at < segment.start + max(segment.size, self._store.queue_bytes):
                return segment.path, at - segment.start
        return queue.directory, at


def _describe(match: Match, rows: Rows, found: Rows) -> str:
    row, entry = rows[0], found[0]
    many = f" ({len(rows)} entries in a row are wrong)" if len(rows) > 1 else ""
    offset = int(row["queue_offset"])
    if match == Match.BLANK:
        last = int(rows[-1]["queue_offset"])
        return f"entries {offset} to {last} are the filling of a queue that begins late, but the log has their records"
    if match == Match.TAGS:
        return f"entry {offset} has tags code {int(entry['tags_code'])}, its record says {int(row['tags_code'])}{many}"
    at, size = int(row["physical_offset"]), int(row["size"])
    there = f"{int(entry['physical_offset'])} with {int(entry['size'])} bytes"
    return f"entry {offset} points to {there}, its record lies at {at} with {size} bytes{many}"
