"""What every client of a drill did and saw, one row per operation, in files that only grow.

A file is a head and rows::

    0   8  magic  "PENHIST1"
    8   4  length of the description, u32 little-endian
    12  n  description: JSON object with client (number), name, shards (names, by number)
    …   64 a row of EVENT, again and again

Rows are appended with one ``write`` per block, so a process that is killed leaves whole rows and at most one torn one
at the end, which the reader drops and counts. Times are of the machine's monotonic clock, which all processes of one
machine share; so rows of different files may be compared.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"PENHIST1"
SUFFIX = ".history"
NO_KEY = -1
_HEAD_BYTES = len(MAGIC) + 4

EVENT = np.dtype(
    [
        ("start_ns", "<i8"),  # monotonic: the operation began
        ("end_ns", "<i8"),  # its answer was there, or it was given up
        ("sequence", "<i8"),  # of the message in its stream; POSITION: the queue's min offset
        ("offset", "<i8"),  # in the queue; INVOKE: how many sequences follow; POSITION: the committed offset
        ("position", "<i8"),  # in the log, -1 unknown; POSITION: the queue's max offset
        ("stream", "<u4"),  # the sender that numbered the message
        ("crc", "<u4"),  # CRC-32 of the body as sent, or as received
        ("key", "<i4"),  # the ordering key's number, NO_KEY without one
        ("epoch", "<i4"),  # of the master that acknowledged, 0 unknown
        ("client", "<u2"),  # who did it
        ("shard", "<i2"),  # number of the broker group, -1 unknown
        ("queue", "<i2"),  # queue id, -1 unknown
        ("op", "u1"),  # Op
        ("outcome", "u1"),  # Outcome
    ]
)
"""One operation."""
ROW = struct.Struct("<qqqqqIIiiHhhBB")
assert ROW.size == EVENT.itemsize == 64

Events = npt.NDArray[Any]
"""Arrays of :data:`EVENT`: one-dimensional, columns by name."""


class Op(IntEnum):
    """What was done."""

    INVOKE = 0  # sequences were reserved: their sends may happen from now on
    SEND = 1
    RECEIVE = 2  # a member of the consumer group got it
    READ = 3  # the reader got it at the end, when everything was healed
    POSITION = 4  # somebody looked at the offsets of a queue and of the group in it
    GIVE_BACK = 5  # a member gives it back: UNKNOWN before each try, OK when it is kept
    CAME_AGAIN = 6  # a member got it from the group's retry topic
    RETURNED = 7  # the reader found a copy in the retry topic at the end
    DEAD = 8  # the same among the dead letters
    WORK = 9  # an orderly member works on it: UNKNOWN when it begins, OK when it has ended
    DECIDE = 10  # of a transaction: UNKNOWN before a commit is tried, OK when it is confirmed, REFUSED rolled back
    LATER = 11  # it was sent for later, as SEND; offset: when it is due, ms since 1970
    SHOWN = 12  # the reader found it among transactions and messages for later; position: stored when, ms since 1970
    HOLD = 13  # a simple consumer has it until offset, in monotonic ns: OK got it, UNKNOWN before it is given back
    ACKNOWLEDGE = 14  # it was done with, and the broker said so


class Outcome(IntEnum):
    """How it ended."""

    OK = 0
    REFUSED = 1  # certainly not stored
    UNKNOWN = 2  # perhaps stored


class Recorder:
    """Appends rows to one client's file. Threads may share it.

    :meth:`add` keeps rows in memory; they are in the file (for the death of this process, not for a power cut) when
    :meth:`flush` returns.
    """

    def __init__(self, path: Path, client: int, name: str, shards: Sequence[str]) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._rows = bytearray()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        description = json.dumps({"client": client, "name": name, "shards": list(shards)}).encode()
        _write(self._descriptor, MAGIC + struct.pack("<I", len(description)) + description)

    def add(
        self,
        op: Op,
        outcome: Outcome,
        start_ns: int,
        end_ns: int,
        *,
        stream: int = 0,
        sequence: int = 0,
        crc: int = 0,
        key: int = NO_KEY,
        shard: int = -1,
        queue: int = -1,
        offset: int = -1,
        position: int = -1,
        epoch: int = 0,
    ) -> None:
        """Keep one row."""
        row = (start_ns, end_ns, sequence, offset, position, stream, crc, key, epoch)
        with self._lock:
            self._rows += ROW.pack(*row, self.client, shard, queue, op, outcome)

    def add_all(self, rows: Events) -> None:
        """Keep an array of :data:`EVENT`; its ``client`` is set to this one."""
        rows["client"] = self.client
        with self._lock:
            self._rows += rows.tobytes()

    def flush(self) -> None:
        """Append what was kept to the file."""
        with self._lock:
            if self._rows:
                _write(self._descriptor, bytes(self._rows))
                self._rows.clear()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        os.close(self._descriptor)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@dataclass(slots=True)
class History:
    """All rows of a drill, in no particular order between clients; each client's own stay in its order."""

    events: Events
    shards: tuple[str, ...]
    clients: dict[int, str]
    torn_bytes: int = 0
    _chosen: dict[tuple[Op, ...], Events] = field(default_factory=dict, repr=False)  # every invariant asks for the same
    _sends: dict[Outcome, Events] = field(default_factory=dict, repr=False)

    def of(self, *ops: Op) -> Events:
        """The rows of these operations."""
        if ops not in self._chosen:
            self._chosen[ops] = self.events[np.isin(self.events["op"], [int(op) for op in ops])]
        return self._chosen[ops]

    def sends(self, outcome: Outcome) -> Events:
        """The sends that ended so."""
        if outcome not in self._sends:
            sends = self.of(Op.SEND)
            self._sends[outcome] = sends[sends["outcome"] == outcome]
        return self._sends[outcome]

    def place_name(self, event: np.void) -> str:
        """Shard, queue and offset of a row, for people."""
        shard = int(event["shard"])
        name = self.shards[shard] if 0 <= shard < len(self.shards) else f"shard {shard}"
        return f"{name} queue {event['queue']} offset {event['offset']}"


class DamagedHistory(ValueError):
    """A file holds no history, or one that cannot be judged."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One client's file: where its rows begin, and how many are whole."""

    path: str
    client: int
    name: str
    shards: tuple[str, ...]
    start: int
    rows: int
    torn_bytes: int


def history_files(folder: Path) -> list[Path]:
    """The history files in ``folder``."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def list_files(paths: Iterable[Path]) -> list[HistoryFile]:
    """The files of one drill by their heads, in the order of their paths.

    Raises DamagedHistory: a file's head is not that of a history, or two files disagree about the shards.
    """
    found: list[HistoryFile] = []
    for path in sorted(paths):
        one = _opened(path)
        if found and one.shards != found[0].shards:
            raise DamagedHistory(
                f"{path}: has the shards {one.shards}, {found[0].path} has {found[0].shards}: not of one drill"
            )
        found.append(one)
    return found


def _opened(path: Path) -> HistoryFile:
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        try:
            if head[:8] != MAGIC:
                raise ValueError(f"begins with {head[:8]!r}, not {MAGIC!r}")
            (length,) = struct.unpack("<I", head[8:])
            description = json.loads(file.read(length))
            client, shards = int(description["client"]), tuple(map(str, description["shards"]))
            name = str(description["name"])
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DamagedHistory(f"{path}: no history of a drill: {error}") from error
        start = _HEAD_BYTES + length
        rows, torn = divmod(max(os.fstat(file.fileno()).st_size - start, 0), EVENT.itemsize)
    return HistoryFile(str(path), client, name, shards, start, rows, torn)


def read_events(path: str, start: int, first: int, rows: int) -> Events:
    """``rows`` rows of a file whose rows begin at byte ``start``, from row ``first`` on."""
    return np.fromfile(path, EVENT, count=rows, offset=start + first * EVENT.itemsize)


def read_history(paths: Iterable[Path]) -> History:
    """The rows of all clients together. Raises DamagedHistory: see :func:`list_files`."""
    files = list_files(paths)
    parts = [read_events(file.path, file.start, 0, file.rows) for file in files]
    return History(
        np.concatenate([np.empty(0, EVENT), *parts]),
        files[0].shards if files else (),
        {file.client: file.name for file in files},
        sum(file.torn_bytes for file in files),
    )
