"""One pass over a log: proves every record, keeps every damage, and tells what must be derived.

The reader hands out batches: the queue entries and index keys that the records demand. What it meets besides records
it keeps, so that callers decide what that means: a check reports it, a rebuild fills it, a search passes over it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..directory import Segment
from ..files import InputFile, Unreadable
from .model import Batch, Damage, LogPass, Tail
from .segment_walk import SegmentWalk


class LogReader(LogPass):
    """Reads the log of its store from front to back; for one pass."""

    def read(self, start: int = 0, end: int | None = None) -> Iterator[Batch]:
        """All batches from log position ``start`` on, which must be a record's, to the log's end.

        With ``end``, files from there on are not read.
        """
        segments = self.store.segments
        self.tail = Tail(segments[-1].start + self.store.segment_bytes)
        for number, segment in enumerate(segments):
            if segment.start + self.store.segment_bytes <= start:
                continue
            if end is not None and segment.start >= end:
                break
            if segment.start >= start:
                self._keep_gap(number)
            try:
                with InputFile(segment.path) as file:
                    file.expect_sequential()
                    walk = SegmentWalk(self, file, number, max(0, start - segment.start))
                    try:
                        finished = yield from walk.run()
                    except Unreadable as error:
                        self._keep_unreadable(segment, walk.position, error)
                        finished = False
            except Unreadable as error:
                self._keep_unreadable(segment, 0, error)
                finished = False
            if finished:
                break
        yield from self.flush()
        self.show_progress(self.tail.end, done=True)

    def _keep_gap(self, number: int) -> None:
        """Damage where log files are missing in front of this one."""
        if number > 0:
            before, segment = self.store.segments[number - 1], self.store.segments[number]
            due = before.start + self.store.segment_bytes
            if segment.start != due:
                reason = f"log files are missing between {before.path.name} and {segment.path.name}"
                self.damages.append(Damage(due, segment.start, reason, True, True))

    def _keep_unreadable(self, segment: Segment, position: int, error: Unreadable) -> None:
        end = segment.start + self.store.segment_bytes
        reason = str(error).removeprefix(f"{segment.path}: ")
        self.damages.append(Damage(segment.start + position, end, reason, True, True))
