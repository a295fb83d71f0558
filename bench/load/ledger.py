"""Numbered messages: what a body says of itself, and what the numbers say of losses, duplicates and order.

| Offset | Size | Field |
|---|---|---|
| 0 | 4 | run, u32 little-endian: another one for every load test, so that old messages are told apart |
| 4 | 4 | stream, u32: one ordered sender |
| 8 | 8 | sequence in the stream, u64 from 0 |
| 16 | 8 | send time, u64, ns since 1970 by the sender's clock |
| 24 | rest | padding up to the body's size |
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

HEADER = struct.Struct("<IIQQ")
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 24
FIELDS = np.dtype([("run", "<u4"), ("stream", "<u4"), ("sequence", "<u8"), ("sent_ns", "<u8")])
assert FIELDS.itemsize == HEADER_BYTES

SEEN = np.dtype([("run", "<u4"), ("stream", "<u4"), ("sequence", "<u8"), ("queue", "<u4"), ("offset", "<i8")])
"""One received message. ``queue`` is a number of (broker name, queue id), see :class:`Received`."""


def numbered_rows(size: int, run: int, stream: int, first: int, count: int, now_ns: int) -> npt.NDArray[np.uint8]:
    """``count`` bodies as rows, numbered from ``first``."""
    rows = np.zeros((count, size), dtype=np.uint8)
    fields = np.empty(count, dtype=FIELDS)
    fields["run"], fields["stream"], fields["sent_ns"] = run, stream, now_ns
    fields["sequence"] = np.arange(first, first + count, dtype=np.uint64)
    rows[:, :HEADER_BYTES] = fields.view(np.uint8).reshape(count, HEADER_BYTES)
    return rows


def headers_of(bodies: Sequence[bytes]) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """The headers of the bodies that are long enough to have one, and which ones these are."""
    fits = np.fromiter((len(body) >= HEADER_BYTES for body in bodies), dtype=np.bool_, count=len(bodies))
    raw = b"".join([body[:HEADER_BYTES] for body in bodies if len(body) >= HEADER_BYTES])
    return np.frombuffer(raw, dtype=FIELDS), fits


def header_of(body: bytes) -> tuple[int, int, int]:
    """Run, stream and sequence that one body says; what it is too short for is 0."""
    run, stream, sequence, _ = HEADER.unpack_from(body.ljust(HEADER_BYTES, b"\0"))
    return run, stream, sequence


class Received:
    """What one consumer has seen, in memory until it is written to a file."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.void]] = []
        self._brokers: dict[str, int] = {}

    def add(
        self,
        headers: npt.NDArray[np.void],
        broker_name: str,
        queue_ids: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
    ) -> None:
        """Messages of one broker group."""
        part = np.empty(len(headers), dtype=SEEN)
        for name in ("run", "stream", "sequence"):
            part[name] = headers[name]
        # A queue's number must be the same in every consumer: 16 bits of the name's hash, 16 bits of queue id.
        number = self._brokers.setdefault(broker_name, _short_hash(broker_name))
        part["queue"] = (np.uint32(number) << np.uint32(16)) | queue_ids.astype(np.uint32)
        part["offset"] = offsets
        self._parts.append(part)

    def save(self, path: Path) -> None:
        """All of it as one array file."""
        np.save(path, np.concatenate(self._parts) if self._parts else np.empty(0, dtype=SEEN))


def _short_hash(text: str) -> int:
    value = 5381
    for byte in text.encode():
        value = (value * 33 + byte) & 0xFFFF
    return value


@dataclass(frozen=True, slots=True)
class Verdict:
    distinct: int = 0  # messages seen at least once
    duplicates: int = 0  # seen again: delivered twice, or stored twice
    stored_twice: int = 0  # of the duplicates: at another offset, so a retry was stored again
    lost: int = 0  # acknowledged and never seen
    out_of_order: int = 0  # older than the message before it in the same queue, of the same sender and key


def verify(
    seen: npt.NDArray[np.void],
    run: int,
    sent: Mapping[int, int],
    not_acknowledged: int,
    exact: Mapping[int, Sequence[int]] = MappingProxyType({}),
    *,
    keys: int = 0,
) -> Verdict:
    """Compare what was seen with what each stream sent (stream → messages, numbered from 0).

    ``exact`` names by stream what was not acknowledged, where the sender knows it by number; ``not_acknowledged``
    counts it where only the number of such messages is known, and then at most so many missing ones are forgiven. With
    ``keys``, message n had key n modulo ``keys``, and only messages of one key have an order: a key moves to another
    queue when its broker group dies, behind messages of other keys that were sent after it.
    """
    mine = seen[seen["run"] == run]
    order = np.lexsort((mine["offset"], mine["queue"], mine["sequence"], mine["stream"]))
    mine = mine[order]
    same_message = np.zeros(len(mine), dtype=np.bool_)
    same_message[1:] = (mine["stream"][1:] == mine["stream"][:-1]) & (mine["sequence"][1:] == mine["sequence"][:-1])
    same_place = np.zeros(len(mine), dtype=np.bool_)
    same_place[1:] = (mine["queue"][1:] == mine["queue"][:-1]) & (mine["offset"][1:] == mine["offset"][:-1])
    stored_twice = int((same_message & ~same_place).sum())
    first = mine[~same_message]
    missing = 0
    for stream, count in sent.items():
        present = first["sequence"][first["stream"] == stream]
        absent = np.ones(count, dtype=np.bool_)
        absent[present[present < count].astype(np.int64)] = False
        absent[np.asarray(exact.get(stream, ()), dtype=np.int64)] = False
        missing += int(absent.sum())
    return Verdict(
        distinct=len(first),
        duplicates=int(same_message.sum()),
        stored_twice=stored_twice,
        lost=max(missing - not_acknowledged, 0),
        out_of_order=_out_of_order(first, keys),
    )


def _out_of_order(first: npt.NDArray[np.void], keys: int) -> int:
    key = first["sequence"] % np.uint64(keys) if keys else np.zeros(len(first), dtype=np.uint64)
    order = np.lexsort((first["offset"], key, first["stream"], first["queue"]))
    by_queue, key = first[order], key[order]
    if len(by_queue) < 2:
        return 0
    together = (by_queue["queue"][1:] == by_queue["queue"][:-1]) & (by_queue["stream"][1:] == by_queue["stream"][:-1])
    together &= key[1:] == key[:-1]
    return int((together & (by_queue["sequence"][1:] < by_queue["sequence"][:-1])).sum())


def gaps(seen: npt.NDArray[np.void]) -> dict[tuple[int, int], int]:
    """``(run, stream)`` → how many it must have sent at least: the largest number seen, and one more."""
    found: dict[tuple[int, int], int] = {}
    for run in np.unique(seen["run"]):
        of_run = seen[seen["run"] == run]
        for stream in np.unique(of_run["stream"]):
            largest = int(of_run["sequence"][of_run["stream"] == stream].max())
            found[int(run), int(stream)] = largest + 1
    return found
