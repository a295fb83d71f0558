"""What was written, in a few bytes: for recognizing what is written again, by a job or to a lane."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.columns import Column, column_of, hashes_of

from .routing import Piece, by_topic
from .writers import hash_64

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
"""An odd number, so that sums of products do not cancel as sums of small hashes would."""
_PARTS = struct.Struct(">Q5I")


@dataclass(slots=True)
class Content:
    """Number of messages, and a sum over the hashes of their topics and bodies that no order or division changes.

    ``newest``: when the last of the topics was created at some broker group, in ms. ``oldest``: of the topic that came
    last, when it was created at the first group. So a group that comes or goes is not taken for a topic made anew.
    """

    records: int = 0
    digest: int = 0
    newest: int = 0
    oldest: int = 0

    def add(self, topic: str, bodies: Column) -> None:
        """Messages of ``topic``."""
        mixed = (hashes_of(bodies).astype(np.uint64) ^ np.uint64(hash_64(topic))) * np.uint64(_SPREAD)
        mixed ^= mixed >> np.uint64(29)
        self.records += len(bodies)
        self.digest = (self.digest + int(mixed.sum(dtype=np.uint64))) & _MASK

    def add_created(self, created: Collection[int]) -> None:
        """When a topic of the messages was created at its broker groups, as far as that is known."""
        self.newest = max(self.newest, *created, 0)
        self.oldest = max(self.oldest, min(created, default=0))

    @classmethod
    def total(cls, parts: Iterable[Content]) -> Content:
        """All parts together."""
        found = cls()
        for part in parts:
            found.records += part.records
            found.digest = (found.digest + part.digest) & _MASK
            found.newest, found.oldest = max(found.newest, part.newest), max(found.oldest, part.oldest)
        return found

    def is_same(self, known: str) -> bool:
        """True if ``known``, some content's text, tells of the same messages."""
        return known.split(";")[:2] == str(self).split(";")[:2]

    def is_anew(self, known: str) -> bool:
        """True if one of the topics was created after ``known`` had been written, as far as that is known."""
        return 0 < int(known.split(";")[2]) < self.oldest

    def __str__(self) -> str:
        return f"{self.records};{self.digest:016x};{self.newest}"


def as_they_came(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, Column]]:
    """The bodies of each topic's rows, as :func:`.routing.by_topic`, whether they can be messages or not.

    So a job's content does not depend on which of them are refused. No body counts as an empty one, no topic likewise.
    """
    columns = {"body": pc.fill_null(batch.column("body"), "")}
    if "topic" in batch.schema.names and not topic:
        columns["topic"] = pc.fill_null(batch.column("topic"), "")
    for name, part in by_topic(pa.RecordBatch.from_pydict(columns), topic):
        yield name, column_of(part.column("body"))


def running(before: int, piece: Piece) -> int:
    """The digest of everything up to ``before`` and of the piece behind it: its queues, properties and bodies. Never 0.

    As chunks are cut in the same way whenever a batch comes again, the last digest of a lane tells whether any of its
    chunks is another than it was. Checksums are enough: nobody makes rows so that they meet.
    """
    columns = (piece.queue_ids, piece.bodies.data, piece.bodies.ends, piece.properties.data, piece.properties.ends)
    sums = [_sum(each) for each in columns]
    digest = hashlib.blake2b(_PARTS.pack(before, *sums), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def _sum(values: np.ndarray[Any, Any]) -> int:
    from penstock.formats.record.kernels import crc32  # here, as who plans and commits loads no kernels

    data = values.view(np.uint8)
    return int(crc32(data, 0, len(data)))
