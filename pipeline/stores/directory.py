"""What lies in a store directory, and up to where its log is to be read.

The directory may be on any file system that ``pyarrow.fs`` knows (a path, ``s3://…``, ``gs://…``, ``hdfs://…``). It is
only read, and may belong to a running broker: the end is fixed here, so that all readers of one plan agree.

| Store | Read up to |
|---|---|
| closed (no file ``abort``), or ``upTo=end`` | the end of the last sound record |
| open or crashed, Penstock's | the confirm offset, which its checkpoint follows with every sync of the log |
| open or crashed, RocketMQ's with epochs | the confirm offset in its checkpoint |
| open or crashed, RocketMQ's without | the end of the last sound record: such a broker knows no other |

A closed store whose log ends in something else than zeros, or before what its checkpoint tells of it, has lost bytes:
that is damage, which ``upTo=end`` passes over.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from pyarrow import fs

from penstock.formats.checkpoint import CHECKPOINT_BYTES, Own, Standard, decode_own
from penstock.formats.directory import ABORT, CHECKPOINT, COMMIT_LOG, EPOCHS, OWN_CHECKPOINT, file_start
from penstock.formats.epochs import Epoch
from penstock.formats.epochs import decode as decode_epochs
from penstock.proto.errors import ConfigError, Corrupt, WrongStore

from .files import FileReader, expand_roots, open_file_system
from .model import Damage, LogFile, Store

if TYPE_CHECKING:
    from .scan.scanning import FileScan

log = logging.getLogger(__name__)


def list_store(root: str, broker_name: str = "", *, up_to: str = "confirm") -> Store:
    """List the store at ``root`` and find its end.

    Raises ConfigError: there is no such directory.
    Raises WrongStore: it holds no store, or one of which nothing is confirmed yet, or a later version's.
    Raises Corrupt: its log files overlap, or hold no record though they are not empty.
    """
    file_system, path = open_file_system(root)
    kind = file_system.get_file_info(path).type
    if kind == fs.FileType.NotFound:
        raise ConfigError(f"{root}: no such directory")
    if kind != fs.FileType.Directory:
        raise ConfigError(f"{root}: not a directory: give the store's root, which holds commitlog/")
    files = _log_files(file_system, f"{path}/{COMMIT_LOG}", root)
    size = Counter(file.size for file in files if file.size).most_common(1)[0][0]
    gaps = _gaps(files, size)
    is_open = file_system.get_file_info(f"{path}/{ABORT}").type != fs.FileType.NotFound
    # Before the end is looked for, so that a running broker's log reaches at least as far.
    standard = Standard.decode(_read(file_system, f"{path}/{CHECKPOINT}"))
    own = decode_own(_read(file_system, f"{path}/{OWN_CHECKPOINT}"), standard, f"{path}/{OWN_CHECKPOINT}")
    files, found = _find_end(file_system, files, is_open=is_open)
    complete = not is_open
    if up_to == "confirm" and not is_open:
        gaps += _lost(files[-1], found, standard, own)
    elif up_to == "confirm":
        has_epochs = file_system.get_file_info(f"{path}/{EPOCHS}").type != fs.FileType.NotFound
        confirmed, complete = _confirmed(standard, own, has_epochs=has_epochs)
        if confirmed is not None:
            if confirmed <= files[0].start and found.position > 0:
                raise WrongStore(
                    f"{root}: nothing of its log is confirmed yet: try again in a second, or read it with upTo=end"
                )
            files = _cut(files, confirmed)
    name = broker_name or _name_of(path)
    return Store(root, name, tuple(files), size, is_open, found.tail, tuple(gaps), complete)


def require_names(
    reader: str, roots: tuple[str, ...], names: tuple[str, ...], option: str = "broker_name"
) -> list[str]:
    """The roots, with patterns replaced, if there are names for all of them, or none.

    ``reader``, and its ``option`` that gives the names: what errors name.
    Raises ConfigError: there are not, or nothing matches a pattern.
    """
    found = expand_roots(roots)
    if names and len(names) != len(found):
        raise ConfigError(
            f"{reader}: {option} lists {len(names)} names ({', '.join(names)}) for {len(found)} stores "
            f"({', '.join(found)}): give one for each, in the same order, or none"
        )
    return found


def list_stores(
    reader: str, roots: tuple[str, ...], names: tuple[str, ...], up_to: str, option: str = "broker_name"
) -> list[Store]:
    """The stores, each of a broker of its own; arguments as for :func:`require_names`.

    Raises ConfigError: names are missing, two stores have the same, or a directory is missing.
    Raises WrongStore, Corrupt: see :func:`list_store`.
    """
    found = require_names(reader, roots, names, option)
    listed = [
        list_store(root, name, up_to=up_to) for root, name in zip(found, names or ("",) * len(found), strict=True)
    ]
    seen: dict[str, str] = {}
    for store in listed:
        if store.broker_name in seen:
            raise ConfigError(
                f"{reader}: {seen[store.broker_name]} and {store.root} would both be broker {store.broker_name!r}: "
                f"set {option} to one name for each, in this order"
            )
        seen[store.broker_name] = store.root
    return listed


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
        start = file_start(info.base_name)
        if info.type == fs.FileType.File and start is not None:
            files.append(LogFile(info.path, start, info.size, info.size, True))
    files.sort(key=lambda file: file.start)
    while files and files[-1].size == 0:
        files.pop()  # left over from allocating it
    if not files:
        raise WrongStore(f"{directory} holds no log file: their names are 20 digits")
    return files


def _gaps(files: list[LogFile], size: int) -> list[Damage]:
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
    return gaps


class _End(NamedTuple):
    """What the last file with records holds: its end in the file, what stands there, and its newest store time."""

    position: int
    tail: str
    newest_ms: int


def _find_end(file_system: fs.FileSystem, files: list[LogFile], *, is_open: bool) -> tuple[list[LogFile], _End]:
    """Leave out the files that are allocated and empty, and end the last one behind its last sound record."""
    from .scan.scanning import FileScan  # its kernels take a moment, which no job needs before it runs

    kept = list(files)
    while kept:
        file = kept[-1]
        with FileReader(file_system, file.path) as reader:
            found = _end_of(FileScan(reader, file.start, file.size, check_crc=is_open), is_open=is_open)
        if found.position > 0 or len(kept) == 1:
            if found.position == 0 and found.tail != "empty":
                raise Corrupt(f"{file.path}: no record in it: {found.tail}")
            kept[-1] = replace(file, end=found.position, is_sealed=False)
            return kept, found
        kept.pop()
        if found.tail != "empty":
            kept[-1] = replace(kept[-1], is_sealed=False)
            return kept, found
    return kept, _End(0, "empty", 0)


def _end_of(scan: FileScan, *, is_open: bool) -> _End:
    """Behind the last sound record (or blank). In an open store, older records behind a torn one were cut off once."""
    from .scan.scanning import ZEROS

    end, torn = 0, ""
    newest = -(1 << 63)
    for piece in scan.read(0, scan.size):
        if isinstance(piece, Damage):
            torn = torn or piece.reason
            continue
        _, rows = piece
        if is_open and torn and int(rows["store_timestamp"][0]) < newest:
            break
        newest = int(rows["store_timestamp"][-1])
        end = int(rows["physical_offset"][-1]) + int(rows["size"][-1]) - scan.start
        torn = ""
    if scan.ended_with_blank and not torn:
        return _End(scan.size, "full", newest)
    if torn and torn != ZEROS:
        return _End(end, f"torn: {torn}", newest)
    return _End(end, "clean" if end else "empty", newest)


def _lost(last: LogFile, found: _End, standard: Standard, own: Own) -> list[Damage]:
    """What a closed store's log has lost at its end."""
    end = last.start + last.end
    if found.tail.startswith("torn"):
        return [Damage(end, max(end, last.start + last.size), f"the closed log ends {found.tail}")]
    if own.positions is not None and own.positions.clean and own.positions.end > end:
        told = f"the log was closed at {own.positions.end}"
    elif max(standard.physic_msg_timestamp, standard.logics_msg_timestamp) > found.newest_ms > 0:
        known_ms = max(standard.physic_msg_timestamp, standard.logics_msg_timestamp)
        told = f"the checkpoint knows of a record stored at {known_ms}, the last one is of {found.newest_ms}"
    else:
        return []
    return [Damage(end, max(end, own.positions.end if own.positions else end), f"records are missing: {told}")]


def _cut(files: list[LogFile], confirmed: int) -> list[LogFile]:
    kept = [file for file in files if file.start < confirmed] or files[:1]
    last = kept[-1]
    end = max(0, min(last.end, confirmed - last.start))
    return [*kept[:-1], replace(last, end=end, is_sealed=last.is_sealed and end == last.size)]


def _confirmed(standard: Standard, own: Own, *, has_epochs: bool) -> tuple[int | None, bool]:
    """Up to where the log is confirmed, None where nothing says so; and whether the queues reach that far."""
    if own.positions is not None:
        confirmed = max(own.positions.derived, standard.confirm_phy_offset, own.confirmed)
        return confirmed, confirmed == own.positions.derived
    return (standard.confirm_phy_offset if has_epochs else None), False


def _read(file_system: fs.FileSystem, path: str) -> bytes:
    try:
        with file_system.open_input_file(path) as file:
            return bytes(file.read(CHECKPOINT_BYTES))
    except FileNotFoundError:
        return b""


def epochs_of(store: Store) -> tuple[Epoch, ...] | None:
    """Each master's epoch and where its part of the log begins, oldest first; None where the store does not say."""
    file_system, root = open_file_system(store.root)
    path = f"{root}/{EPOCHS}"
    try:
        with file_system.open_input_file(path) as file:
            return decode_epochs(file.read(), path)
    except FileNotFoundError:
        return None
    except Corrupt as error:
        log.warning("epochs are not known path=%s error=%s", path, error)
        return None
