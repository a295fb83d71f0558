"""What a commit of the lake says about each log file that it adds, and how far a log is archived by that.

Entries stand in the table's own log: the field ``penstock`` of a commit's ``commitInfo`` is an object with ``version``,
1, and ``logFiles``, which have the fields of :class:`Entry`. ``crc32`` is of the range's bytes; ``headCrc32`` and
``tailCrc32`` are of its first and last 4 KiB, by which a log file is known again without reading it whole; ``queues``
are topic, queue id, messages, first and last offset; ``files`` are name in the table, bytes, and CRC-32 of these;
``epochs`` are the masters that wrote the range, each with the position at which it begins, null where the store does
not say. Times are in ms.

A body that cannot be decompressed is in the lake as it was stored, and ``damages`` counts its message.

In a lake of topics (the job ``archive-topic``) an entry stands for one run's messages of one broker: ``segment`` is its
number, ``fileBytes`` and ``crc32`` are 0, the other checksums of a log null, and the range reaches from its first
record to behind its last one. ``epochs`` has the newest of the log as the run found it, at the range's begin.
``created`` are its topics, each with when it was created at the broker, which tells it from one of the same name that
was made anew; older lakes do not say, and those of log files have null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from penstock.proto.errors import Corrupt

VERSION = 1
_END = 1 << 63


class LakeFile(NamedTuple):
    """A Parquet file of the table: its name there, its bytes, and their CRC-32."""

    name: str
    size: int
    crc32: int

    @property
    def day(self) -> str:
        """The day (UTC) on which its messages were stored, or Spark's name for none."""
        return self.name.partition("/")[0].removeprefix("dt=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the lake holds of one log file; see the module's text."""

    broker: str
    segment: int
    startPhysicalOffset: int
    endPhysicalOffset: int
    fileBytes: int
    sealed: bool
    rows: int
    recordBytes: int
    damages: int
    firstStoreTimestamp: int | None
    lastStoreTimestamp: int | None
    crc32: int
    queues: tuple[tuple[str, int, int, int, int], ...]
    files: tuple[LakeFile, ...]
    archivedAt: int
    headCrc32: int | None = None
    tailCrc32: int | None = None
    epochs: tuple[tuple[int, int], ...] | None = None
    created: tuple[tuple[str, int], ...] | None = None

    @property
    def of_topics(self) -> bool:
        """Whether it is of messages that were read over the network, so that there is no log file."""
        return self.fileBytes == 0

    @property
    def place(self) -> tuple[str, int]:
        """The broker and the log file, for which one entry stands at a time."""
        return self.broker, self.segment

    def __str__(self) -> str:
        return f"log file {self.segment:020d} of broker {self.broker}"

    def may_replace(self, former: Entry) -> bool:
        """Whether it has more of the log than ``former``. Nothing replaces what stands for a run of topics."""
        if (self.endPhysicalOffset, self.sealed) == (former.endPhysicalOffset, former.sealed):
            return False
        reaches = self.endPhysicalOffset >= former.endPhysicalOffset and self.sealed >= former.sealed
        return reaches and not former.of_topics


def to_document(entries: Sequence[Entry]) -> dict[str, Any]:
    """What a commit says about these."""
    return {"version": VERSION, "logFiles": [asdict(entry) for entry in entries]}


def from_document(document: Any, where: str) -> list[Entry]:
    """The entries of a commit, ``where`` being its name for errors.

    Raises Corrupt: it is of another version, or says something else.
    """
    try:
        if document["version"] != VERSION:
            raise Corrupt(
                f"{where}: written by version {document['version']} of the archive, this program knows {VERSION}"
            )
        return [_entry(dict(each)) for each in document["logFiles"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{where}: not what an archive says about log files: {error!r}: restore the table's log from a copy"
        ) from error


def _entry(fields: dict[str, Any]) -> Entry:
    fields["queues"] = tuple((str(topic), *map(int, numbers)) for topic, *numbers in fields["queues"])
    fields["files"] = tuple(LakeFile(str(name), int(size), int(crc32)) for name, size, crc32 in fields["files"])
    if fields["epochs"] is not None:
        fields["epochs"] = tuple((int(epoch), int(start)) for epoch, start in fields["epochs"])
    if fields.get("created") is not None:
        fields["created"] = tuple((str(topic), int(created_ms)) for topic, created_ms in fields["created"])
    return Entry(**fields)


def watermark(entries: Iterable[Entry], broker: str, log_start: int) -> int:
    """The first byte of the broker's log that is not archived, from ``log_start`` (its first one) on."""
    return reach(
        ((one.startPhysicalOffset, one.endPhysicalOffset) for one in entries if one.broker == broker), log_start
    )


def reach(ranges: Iterable[tuple[int, int]], start: int) -> int:
    """The first position at or behind ``start`` that none of these ranges has."""
    return next(holes([*ranges, (_END, _END)], start))[0]


def holes(ranges: Iterable[tuple[int, int]], start: int) -> Iterator[tuple[int, int]]:
    """What none of these ranges has, from ``start`` up to the last one."""
    for first, end in sorted(ranges):
        if first > start:
            yield start, first
        start = max(start, end)
