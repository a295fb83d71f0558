"""The CommitLog: one sequence of bytes in files, to which batches of records are appended.

Offsets are byte positions in the whole sequence. A record, and a batch, never spans two files: where one does not
fit, with the 8 bytes of a blank record behind it, a blank fills the file. All methods are for the owner thread, but
:meth:`sync` and :meth:`commit`.

With a transient store pool appends go to buffers, and the log ends where the last commit ended.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from penstock.formats.intrinsics.text import first_nonzero
from penstock.formats.record.kernels import PlaceStatus, count_records, place_batch, scan
from penstock.formats.record.kernels.sealing import make_room, without_seals, write_seals
from penstock.formats.record.layout import BLANK_BYTES, MAGIC_BLANK
from penstock.formats.record.rows import ROW
from penstock.proto.errors import MessageTooLarge, StorageError
from penstock.runtime.clock import Clock

from ..config import MIB, FlushMode, StoreConfig
from ..disk import Bytes, Disk
from ..queues.kernels import Ints, Longs
from ..results import AppendResult
from .log_directories import LogDirectories
from .log_file import FileAllocator, LogFile, load_log_files, write_to_end
from .log_kernels import same_messages
from .queue_ends import QueueEnds
from .readable_log import ReadableLog
from .transient_store_pool import WriteBuffers
from .warming import Warming

_BLANK = struct.Struct(">ii")
_PAGE = 4096
_AT_ONCE = 1 << 20
_TAIL_SHARE = 64


class CommitLog(ReadableLog):
    """The files, written behind their last byte."""

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        # Written by the owner thread, read by those that flush and write checkpoints:
        # min_offset <= confirm_offset <= end_offset <= appended_offset. They only grow, but for cut(), during which the
        # caller lets no sync run (Flusher.held), and start_at(), before which the log holds nothing. With buffers a
        # commit moves end_offset, in whatever thread.
        super().__init__(disk, config.segment_bytes)
        self.confirm_offset = 0  # the end of what is acknowledged: readers see nothing behind it
        self._config = config
        self._clock = clock
        self.directories = LogDirectories(
            disk, config.log_directories, config.read_only_log_directories, config.segment_bytes
        )
        self.last_store_timestamp_ms = 0  # of the last record; an append is never stored earlier
        self._warming = Warming(
            disk, touch=config.warm_files, lock=config.lock_files, sync=config.flush_mode is FlushMode.SYNC_FLUSH
        )
        self.allocator = FileAllocator(disk, self.directories, config.segment_bytes, self._warming)
        self._tail_bytes = config.segment_bytes // _TAIL_SHARE
        if config.segment_bytes >= MIB:
            self._tail_bytes = max(self._tail_bytes, min(MIB, config.segment_bytes // 8))
        self._buffers: WriteBuffers | None = None
        # Called when an append finds no free buffer, and told whether it is of state: commits everything, or refuses.
        self.on_no_buffer: Callable[[bool], None] = lambda is_state: None
        # What a failed write means: without space it may be tried again, else nothing is written any more.
        self.not_written: Callable[[OSError], StorageError] = lambda error: StorageError(str(error))
        self._host: Bytes = np.frombuffer(config.store_host.encode(), np.uint8)
        self._stamp = 0  # of the batch, in QueueEnds.seen; grows, so that nobody has to clear that
        # Memory of one append: its records as the log will have them; its queues, and its first offset in each.
        self._laid_out: Bytes = np.empty(0, np.uint8)
        self._touched_queues: Ints = np.zeros(64, np.int32)
        self._touched_offsets: Longs = np.zeros(64, np.int64)

    def load(self) -> None:
        """Map the files that are there; ``end_offset`` is behind the last, until recovery knows better."""
        self.files = load_log_files(self._disk, self.directories, self.segment_bytes)
        if self.files:
            self.min_offset, self.end_offset = self.files[0].base, self.files[-1].end
        if self._config.buffers:
            self._buffers = WriteBuffers(self._disk, self._config.buffers, self.segment_bytes)

    @property
    def appended_offset(self) -> int:
        """Where the next append goes: ``end_offset``, or behind what lies in buffers only."""
        return self.end_offset if self._buffers is None else max(self.end_offset, self._buffers.appended)

    @property
    def is_buffered(self) -> bool:
        """True if appends have gone to buffers since :meth:`give_back_buffers`."""
        return self._buffers is not None and self._buffers.is_in_use

    def append(
        self,
        ends: QueueEnds,
        records: Bytes,
        body_max: int,
        count: int | None,
        *,
        is_state: bool = False,
        is_kept: bool = False,
    ) -> AppendResult:
        """Check, place and patch a batch of complete records, of ``count``; the bytes are visible, not yet synced.

        With a pool they are visible, and safe from the process's death, when ``end_offset`` has passed them.
        While no next file can be made, the last bytes of a file are kept for records of the broker's own state.

        Raises:
            CorruptBatch, MessageTooLarge: nothing was stored; ``details['index']`` is the first bad record.
            DiskFull, StorageError: there is no next file, or it could not be written; nothing was stored.
            FlowControl: ``on_no_buffer`` has refused it; nothing was stored.
        """
        records = self._with_room(ends, records, count) if self._config.append_record_crc else without_seals(records)
        file = self._file_for(len(records), is_state)
        queues = ends.queues
        if queues > len(self._touched_queues):
            self._touched_queues, self._touched_offsets = np.zeros(queues, np.int32), np.zeros(queues, np.int64)
        now_ms = max(self.last_store_timestamp_ms, self._clock.wall_ms())
        self._stamp += 1
        start = self.appended_offset
        if self._buffers is None:
            if len(records) + BLANK_BYTES > len(self._laid_out):
                self._laid_out = np.empty(max(len(records) + BLANK_BYTES, MIB), np.uint8)
            data, base = self._laid_out, start
        else:
            data, base = self._buffers.borrow(file, start), file.base
        status, bad, placed, touched = place_batch(
            records,
            data,
            start - base,
            base,
            now_ms,
            self._host,
            ends.name,
            ends.next_offsets[:queues],
            self._stamp,
            ends.seen,
            body_max,
            self._touched_queues,
            self._touched_offsets,
            -1 if count is None else count,
            is_kept,
        )
        if status != PlaceStatus.OK:
            raise ends.refusal(PlaceStatus(status), int(bad), count, body_max)
        if self._config.append_record_crc:
            write_seals(data, start - base, start - base + len(records))
        end = start + len(records)
        in_queues, first_offsets = self._touched_queues[:touched], self._touched_offsets[:touched]
        if self._buffers is None:
            try:
                self._write(file, start, data[: len(records)])
            except BaseException:
                ends.next_offsets[in_queues] = first_offsets
                raise
            self.end_offset = end
        else:
            self._buffers.on_placed(end, end)
        self.last_store_timestamp_ms = now_ms
        return AppendResult(start, end, placed, now_ms, in_queues.tolist(), first_offsets.tolist())

    def commit(self) -> int:
        """Write what is in buffers only to the files; the log's end. Any thread. Raises OSError: may be tried again."""
        if self._buffers is not None:
            with self._buffers.lock:
                if self._buffers.appended > self.end_offset:
                    self.end_offset = self._buffers.write(self.end_offset)
        return self.end_offset

    def give_back_buffers(self) -> None:
        """Use none until the next append. Everything is committed."""
        assert self.appended_offset == self.end_offset, f"{self.appended_offset} of {self.end_offset} not committed"
        if self._buffers is not None:
            self._buffers.give_back()

    def append_bytes(self, start: int, data: memoryview) -> int:
        """Append bytes of another log at the same offset; the new end. They lie within one file, and in no buffer.

        Raises DiskFull, StorageError: they do not follow, or could not be written; nothing was appended.
        """
        if start != self.end_offset or self.is_buffered:
            raise StorageError(f"bytes of offset {start} cannot follow the log's end {self.end_offset}")
        if not len(data):
            return start
        file = self.files[-1] if self.files and start < self.files[-1].end else None
        base = start - start % self.segment_bytes if file is None else file.base
        if start + len(data) > base + self.segment_bytes:
            raise StorageError(f"bytes {start}..{start + len(data)} do not lie within one file")
        if file is None:
            file = self._next_file(base)
        self._write(file, start, np.frombuffer(data, np.uint8))
        self.end_offset = start + len(data)
        return self.end_offset

    def start_at(self, offset: int) -> None:
        """Let the log, which holds nothing, begin at ``offset``."""
        if self.end_offset != self.min_offset:
            raise StorageError(f"the log holds {self.min_offset}..{self.end_offset}: only an empty one can begin anew")
        self.remove_from(0)
        self.allocator.discard()
        self.min_offset = self.end_offset = offset

    def sizes(self, start: int, end: int) -> list[int]:
        """Sizes of the records of ``[start, end)``, which lie in one file and were appended, or committed, together."""
        data, first, stop = self._appended(start, end)
        file = self.file_of(start)
        rows = np.zeros(count_records(data, first, stop, stop - first), ROW)
        count, _, _ = scan(data, first, stop, file.base, False, rows)
        found: list[int] = rows["size"][:count].tolist()
        return found

    def holds(self, start: int, end: int, sent: Bytes) -> bool:
        """True if the records of ``[start, end)``, appended together, have the bodies and queues of those ``sent``."""
        return bool(same_messages(*self._appended(start, end), sent))

    def _appended(self, start: int, end: int) -> tuple[Bytes, int, int]:
        """Bytes of one file, or of the buffer for it, and where in them ``[start, end)`` is."""
        file = self.file_of(start)
        data = file.bytes
        if self._buffers is not None and start >= self.end_offset:
            data = self._buffers.held(start)
        return data, start - file.base, end - file.base

    def sync(self, start: int, end: int) -> None:
        """Have ``[start, end)`` on the disk; from any thread."""
        for file in list(self.files):
            if file.base < end and start < file.end:
                self._disk.sync(file.descriptor)

    def write_again(self, start: int, end: int) -> None:
        """Have ``[start, end)`` written by the next sync, also where the system takes its pages for written."""
        start -= start % _PAGE
        for file in self.files:
            at, stop = max(start, file.base) - file.base, min(end, file.end) - file.base
            while at < stop:
                piece = file.bytes[at : min(at + _AT_ONCE, stop)].tobytes()
                self._disk.pwrite(file.descriptor, piece, at)
                at += len(piece)

    def cut(self, offset: int, *, thorough: bool = False) -> int:
        """Let the log end at ``offset``: what lies behind is zeroed and synced; the number of bytes that were not 0.

        A file made ahead would begin behind a gap, if files go: it goes first. ``thorough``: zeros are written too,
        since the disk may have something else in their place.
        """
        assert not self.is_buffered, "a commit would bring it back"
        self.end_offset = offset
        if self.files and self.files[-1].base >= offset:
            self.allocator.discard()
        self.remove_from(offset)
        if not self.files or offset >= self.files[-1].end:
            return 0
        file = self.files[-1]
        data = file.bytes
        zeroed = 0
        for start, end in self.written(file, offset - file.base):
            position = first_nonzero(data, start, end)
            while position < end:
                stop = min(end, position - position % _PAGE + _PAGE)
                zeroed += int(np.count_nonzero(data[position:stop]))
                data[position:stop] = 0
                position = first_nonzero(data, stop, end)
            if thorough:
                self.write_again(file.base + start, file.base + end)
        self._disk.sync(file.descriptor)
        return zeroed

    def remove_before(self, offset: int) -> None:
        """Delete the files that end at ``offset`` or before."""
        removed = self.take_before(offset)
        for file in removed:
            self._disk.close(file.descriptor)
            self.directories.unlink(file.path)
        if removed:
            self.directories.sync([file.path for file in removed])
            self.min_offset = offset

    def remove_from(self, offset: int) -> None:
        """Delete the files that begin at ``offset`` or behind."""
        removed = [file for file in self.files if file.base >= offset]
        self.files = [file for file in self.files if file.base < offset]
        for file in reversed(removed):
            self._disk.close(file.descriptor)
            self._disk.unlink(file.path)
        self.directories.sync([file.path for file in removed])

    def take_before(self, offset: int) -> list[LogFile]:
        """Let the log begin at ``offset``, where one of its files begins; the files before it, now the caller's."""
        taken = [file for file in self.files[:-1] if file.end <= offset]
        if taken:
            self.files = self.files[len(taken) :]
            self.min_offset = self.files[0].base
        return taken

    def keep_free(self, size: int) -> None:
        """Make no file that would leave less than ``size`` bytes of the disk."""
        self.allocator.keep_free = size

    def close(self) -> None:
        """Close everything, sync nothing."""
        self.allocator.close()
        if self._buffers is not None:
            self._buffers.close()
        for file in self.files:
            self._disk.close(file.descriptor)
        self.files = []

    def _write(self, file: LogFile, start: int, data: Bytes) -> None:
        try:
            write_to_end(self._disk, file, start, data)
        except OSError as error:
            raise self.not_written(error) from error

    def _file_for(self, size: int, is_state: bool) -> LogFile:
        """The file with room for ``size`` bytes and a blank behind them; fills the one before if that has none."""
        if size + BLANK_BYTES > self.segment_bytes:
            raise MessageTooLarge(
                f"a batch of {size} bytes: at most {self.segment_bytes - BLANK_BYTES} fit a log file of this broker",
                index=0,
            )
        appended = self.appended_offset
        if not self.files or appended == self.files[-1].end:
            self._have_buffer(None, is_state)
            return self._next_file(appended - appended % self.segment_bytes)
        file = self.files[-1]
        left = file.end - appended
        if size + BLANK_BYTES <= left:
            self._have_buffer(file, is_state)
            if left - size < self._tail_bytes and not is_state:
                self.allocator.check(file.end)
            return file
        self._have_buffer(None, is_state)
        following = self._next_file(file.end)  # first, so that nothing has changed when there is no space
        at = appended - file.base
        buffer = None if self._buffers is None else self._buffers.of(file)
        data = file.bytes if buffer is None else buffer
        file.demand_whole()
        data[at : at + BLANK_BYTES] = np.frombuffer(_BLANK.pack(left, MAGIC_BLANK), np.uint8)
        if self._buffers is None or buffer is None:
            self.end_offset = following.base
        else:
            self._buffers.on_placed(appended + BLANK_BYTES, following.base)
        return following

    def _have_buffer(self, file: LogFile | None, is_state: bool) -> None:
        """See that there is a buffer for ``file``, or for a new one; all are free once everything is committed."""
        buffers = self._buffers
        if buffers is None or (file is not None and buffers.of(file) is not None):
            return
        buffers.reclaim(self.end_offset)
        if not buffers.free:
            if self.appended_offset > self.end_offset:
                self.on_no_buffer(is_state)
            self.give_back_buffers()

    def _with_room(self, ends: QueueEnds, records: Bytes, count: int | None) -> Bytes:
        """The batch with room for the checksum of each whole record; bad records are left to be refused by name."""
        made, size, index = make_room(records, count_records(records, 0, len(records), len(records)))
        if size < 0:
            raise ends.refusal(PlaceStatus.PROPERTIES_TOO_LARGE, index, count, self._config.body_bytes_max)
        return made if size else records

    def _next_file(self, base: int) -> LogFile:
        file = self.allocator.take(base)
        if self.files:
            self._warming.unlock(self.files[-1].bytes)
        self.files.append(file)
        self.allocator.prepare(file.end)
        return file
