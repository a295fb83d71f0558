"""What lies in a store directory, and up to where its log is to be read.

The directory may be on any file system that ``pyarrow.fs`` knows (a path, ``s3://…``, ``gs://…``, ``hdfs://…``). It is
only read, and may belong to a running broker: the end is fixed here, so that all readers of one plan agree.

| Store | Read up to |
|---|---|
| closed (no file ``abort``), or ``upTo=end`` | the end of the last sound record |
| open or crashed, Penstock's | the dispatch position of its last checkpoint, which is confirmed |
| open or crashed, RocketMQ's with epochs | the confirm offset in its checkpoint |
| open or crashed, RocketMQ's without | the end of the last sound record: such a broker knows no other |
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

from pyarrow import fs

from penstock.proto.errors import ConfigError, Corrupt, WrongStore

from .files import FileReader, open_file_system
from .model import Damage, LogFile, Store
from .scanning import ZEROS, FileScan

_CHECKPOINT = struct.Struct(">5q")
_POSITIONS = struct.Struct(">8sq?10q5q")
"""A slot of ``penstockCheckpoint``: magic, sequence, clean, ten positions, the five numbers of ``checkpoint``."""
_SLOT_BYTES = 512
_DERIVED = 5
"""Which field of a slot is the position up to which everything is dispatched."""


def list_store(root: str, broker_name: str = "", *, up_to: str = "confirm") -> Store:
    """List the store at ``root`` and find its end.

    Raises:
        ConfigError: there is no such directory.
        WrongStore: it holds no store.
        Corrupt: its log files overlap, or hold no record though they are not empty.
    """
    file_system, path = open_file_system(root)
    kind = file_system.get_file_info(path).type
    if kind == fs.FileType.NotFound:
        raise ConfigError(f"{root}: no such directory")
    if kind != fs.FileType.Directory:
        raise ConfigError(f"{root}: not a directory: give the store's root, which holds commitlog/")
    files = _log_files(file_system, f"{path}/commitlog", root)
    size = Counter(file.size for file in files if file.size).most_common(1)[0][0]
    files, gaps = _check_chain(files, size)
    is_open = file_system.get_file_info(f"{path}/abort").type != fs.FileType.NotFound
    files, tail = _find_end(file_system, files, check_crc=is_open)
    complete = not is_open
    if is_open and up_to == "confirm":
        confirmed, complete = _confirmed(file_system, path)
        if confirmed is not None:
            files = _cut(files, confirmed)
    name = broker_name or _name_of(path)
    return Store(root, name, tuple(files), size, is_open, tail, tuple(gaps), complete)


def _name_of(path: str) -> str:
    """The name of the folder; of the one above where it is just called ``store``, as brokers do."""
    pure = PurePosixPath(path)
    return pure.parent.name if pure.name == "store" and pure.parent.name else pure.name


def _log_files(file_system: fs.FileSystem, directory: str, root: str) -> list[LogFile]:
    try:
        infos = file_system.get_file_info(fs.FileSelector(directory))
    except FileNotFoundError:
        raise WrongStore(f"{root} holds no store: there is no directory {directory}") from None
    except OSError as error:
        raise WrongStore(f"{directory}: {error}") from error
    files = []
    for info in infos:
        name = info.base_name
        if info.type == fs.FileType.File and len(name) == 20 and name.isascii() and name.isdecimal():
            files.append(LogFile(info.path, int(name), info.size, info.size, True))
    files.sort(key=lambda file: file.start)
    while files and files[-1].size == 0:
        files.pop()  # left over from allocating it
    if not files:
        raise WrongStore(f"{directory} holds no log file: their names are 20 digits")
    return files


def _check_chain(files: list[LogFile], size: int) -> tuple[list[LogFile], list[Damage]]:
    gaps = []
    for former, file in pairwise(files):
        due = former.start + size
        if file.start < due:
            raise Corrupt(
                f"{file.path}: the file overlaps {PurePosixPath(former.path).name}: log files take {size} bytes each"
            )
        if file.start > due:
            gaps.append(Damage(due, file.start, f"no log file for the bytes {due} to {file.start}"))
        if former.size < size:
            start, end = former.start + former.size, due
            gaps.append(Damage(start, end, f"the file has {former.size} bytes where log files have {size}"))
    return files, gaps


def _find_end(file_system: fs.FileSystem, files: list[LogFile], *, check_crc: bool) -> tuple[list[LogFile], str]:
    """Leave out the files that are allocated and empty, and end the last one behind its last sound record."""
    kept = list(files)
    while kept:
        file = kept[-1]
        with FileReader(file_system, file.path) as reader:
            end, tail = _end_of(FileScan(reader, file.start, file.size, check_crc=check_crc))
        if end > 0 or len(kept) == 1:
            if end == 0 and tail != "empty":
                raise Corrupt(f"{file.path}: no record in it: {tail}")
            kept[-1] = replace(file, end=end, is_sealed=False)
            return kept, tail
        kept.pop()
        if tail != "empty":
            kept[-1] = replace(kept[-1], is_sealed=False)
            return kept, tail
    return kept, "empty"


def _end_of(scan: FileScan) -> tuple[int, str]:
    """Position behind the last sound record (or blank), and what stands there."""
    end, torn = 0, ""
    newest = -(1 << 63)
    for piece in scan.read(0, scan.size):
        if isinstance(piece, Damage):
            torn = torn or piece.reason
            continue
        _, rows = piece
        if torn and int(rows["store_timestamp"][0]) < newest:
            break  # old bytes behind a tail that was cut off
        newest = int(rows["store_timestamp"][-1])
        end = int(rows["physical_offset"][-1]) + int(rows["size"][-1]) - scan.start
        torn = ""
    if scan.ended_with_blank and not torn:
        return scan.size, "full"
    if torn and torn != ZEROS:
        return end, f"torn: {torn}"
    return end, "clean" if end else "empty"


def _cut(files: list[LogFile], confirmed: int) -> list[LogFile]:
    kept = [file for file in files if file.start < confirmed] or files[:1]
    last = kept[-1]
    end = max(0, min(last.end, confirmed - last.start))
    return [*kept[:-1], replace(last, end=end, is_sealed=last.is_sealed and end == last.size)]


def _confirmed(file_system: fs.FileSystem, path: str) -> tuple[int | None, bool]:
    """Up to where the log is confirmed, None where nothing says so; and whether the queues reach that far."""
    standard = _read(file_system, f"{path}/checkpoint")[: _CHECKPOINT.size].ljust(_CHECKPOINT.size, b"\0")
    own = [
        fields[_DERIVED]
        for fields in _slots(_read(file_system, f"{path}/penstockCheckpoint"))
        if _CHECKPOINT.pack(*fields[11:]) == standard
    ]
    if own:
        return max(own), True
    has_epochs = file_system.get_file_info(f"{path}/epochFileCheckpoint").type != fs.FileType.NotFound
    return (_CHECKPOINT.unpack(standard)[4] if has_epochs else None), False


def _slots(content: bytes) -> Iterator[tuple[int, ...]]:
    for slot in (0, 1):
        data = content[slot * _SLOT_BYTES :][: _POSITIONS.size + 4]
        if len(data) < _POSITIONS.size + 4 or not data.startswith(b"PENSTOCK"):
            continue
        body = data[: _POSITIONS.size]
        if zlib.crc32(body) == int.from_bytes(data[_POSITIONS.size :], "big"):
            yield _POSITIONS.unpack(body)[2:]


def _read(file_system: fs.FileSystem, path: str) -> bytes:
    try:
        with file_system.open_input_file(path) as file:
            return bytes(file.read(4096))
    except FileNotFoundError:
        return b""
