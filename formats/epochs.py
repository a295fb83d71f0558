"""``epochFileCheckpoint``: which master wrote which part of the log, as text.

| Line | Content |
|---|---|
| 1 | number of entries |
| 2 | CRC-32 of everything after this line, masked with ``0x7FFFFFFF``, decimal |
| 3… | ``epoch-startOffset``, one entry per line, oldest first |

Example (three changes of leader), from ``tests/golden/ha/controller``::

    3
    642014906
    1-0
    2-12712
    3-26618

Source: RocketMQ EpochFileCache, CheckpointFile.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.proto.errors import Corrupt

ENTRIES_MAX = 1000  # RocketMQ's limit of a handshake

_ENTRY = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_INT64_MAX = (1 << 63) - 1


class Epoch(NamedTuple):
    """One master's time: it wrote the log from ``start`` on, up to the next entry's start."""

    epoch: int
    start: int


def check(entries: Sequence[Epoch]) -> None:
    """Raise ``ValueError`` unless the entries are a history: epochs rise strictly, starts never fall."""
    if len(entries) > ENTRIES_MAX:
        raise ValueError(f"{len(entries)} epochs: at most {ENTRIES_MAX} are kept")
    for entry in entries:
        if not (0 <= entry.epoch <= _INT64_MAX and 0 <= entry.start <= _INT64_MAX):
            raise ValueError(f"epoch {entry.epoch} at {entry.start}: neither may be negative or above 2^63-1")
    for one, following in pairwise(entries):
        if following.epoch <= one.epoch or following.start < one.start:
            raise ValueError(f"epoch {following.epoch} at {following.start} follows {one.epoch} at {one.start}")


def encode(entries: Sequence[Epoch]) -> bytes:
    rest = "".join(f"{entry.epoch}-{entry.start}\n" for entry in entries).encode()
    return f"{len(entries)}\n{_crc(rest)}\n".encode() + rest


def decode(content: bytes, path: str) -> tuple[Epoch, ...]:
    """The entries in ``content``, oldest first; ``path`` is for the error.

    Raises:
        Corrupt: not such a file, or its CRC is wrong, or the entries are no history.
    """
    head = content.split(b"\n", 2)
    try:
        if len(head) != 3:
            raise ValueError("fewer than two lines")
        count, crc, rest = int(head[0]), int(head[1]), head[2]
        if crc != _crc(rest):
            raise ValueError(f"crc {crc}, computed {_crc(rest)}")
        lines = rest.decode("ascii").splitlines()
        if len(lines) != count:
            raise ValueError(f"{len(lines)} entries, line 1 says {count}")
        entries = tuple(map(_entry, lines))
        check(entries)
    except (ValueError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{path}: not an epoch file: {error}; kept as it is: restore it from {path}.bak, which is as it was one "
            "epoch before, or from a replica",
            path=path,
        ) from error
    return entries


def _entry(line: str) -> Epoch:
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise ValueError(f"line {line[:40]!r} is not epoch-startOffset")
    return Epoch(int(match[1]), int(match[2]))


def _crc(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF
