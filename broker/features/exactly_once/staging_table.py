"""What exactly-once writers have decided, and what they have staged: tables derived from state records.

| Tag | Body |
|---|---|
| ``WRITER`` | all that the coordinator knows of one writer, see :class:`Writer` |
| ``STAGED`` | one chunk: ``writer``, ``batch``, ``key``, ``chunk``, ``topic``, ``coordinator``, ``expiresMs``, and where its records are: ``position`` of the record of the staging topic that holds them, ``count`` |
| ``STAGED_GONE`` | ``writer``, ``batch``, ``keys`` whose data is not staged any more; ``published``: because the batch is published at this shard |

The staged bytes themselves are the body of one record of ``names.STAGE_TOPIC`` per chunk. Positions are offsets of the
log, so they mean the same on every replica.
"""  # noqa: E501  a table row cannot be broken

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ...core.tables.table import LOADED, StateRecord, Table

WRITER: Final = "WRITER"
STAGED: Final = "STAGED"
STAGED_GONE: Final = "STAGED_GONE"

REMEMBERED_MS: Final = 30 * 24 * 3600 * 1000
"""A writer that was idle for longer is forgotten, once nothing of it is left unpublished."""
RUNS_MAX: Final = 16

Keys = Mapping[str, Mapping[str, int]]
"""key -> broker group -> number of chunks staged there."""


@dataclass(frozen=True, slots=True)
class Writer:
    """What the coordinator knows of one writer.

    ``coordinator``: the shard that decides; the others only know its name. ``layout``: topic -> the queues that its
    messages are spread over, as they were when the topic was first named, so that a repeated batch finds them the
    same. ``fenced``: earlier runs. ``keys``: those of the decided batch, while it is not ``finished``; ``content``:
    what that batch is about, as its writer tells it. ``expired``: keys of later batches that can not be decided any
    more, since their data may be dropped: key -> batch.
    """

    name: str
    run: str
    epoch: int
    decided: int = -1
    finished: bool = True
    keys: Keys = field(default_factory=dict)
    fenced: tuple[str, ...] = ()
    expired: Mapping[str, int] = field(default_factory=dict)
    touched_ms: int = 0
    coordinator: str = ""
    layout: Mapping[str, str] = field(default_factory=dict)
    content: str = ""

    def to_json(self) -> dict[str, Any]:
        """The body of a ``WRITER`` record."""
        return {
            "writer": self.name,
            "run": self.run,
            "epoch": self.epoch,
            "decided": self.decided,
            "finished": self.finished,
            "keys": self.keys,
            "fenced": list(self.fenced),
            "expired": self.expired,
            "touchedMs": self.touched_ms,
            "coordinator": self.coordinator,
            "layout": dict(self.layout),
            "content": self.content,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Writer:
        """The writer of such a body. Raises KeyError, TypeError or ValueError if it is no writer's."""
        return cls(
            name=str(document["writer"]),
            run=str(document["run"]),
            epoch=int(document["epoch"]),
            decided=int(document["decided"]),
            finished=bool(document["finished"]),
            keys=_checked_keys(document["keys"]),
            fenced=tuple(map(str, document["fenced"])),
            expired=_checked_numbers(document["expired"]),
            touched_ms=int(document["touchedMs"]),
            coordinator=str(document["coordinator"]),
            layout={str(topic): str(queues) for topic, queues in document["layout"].items()},
            content=str(document.get("content", "")),  # older records have none
        )

    def with_run(self, run: str) -> Writer:
        """The same writer in a new run; the one before is fenced, so that none of its keys needs to be remembered."""
        return replace(self, run=run, epoch=self.epoch + 1, fenced=(*self.fenced, self.run)[-RUNS_MAX:], expired={})


class StagedId(NamedTuple):
    """One attempt to write one partition of one batch."""

    writer: str
    batch: int
    key: str


class Chunk(NamedTuple):
    """Where the record is that holds a chunk, and how many records of which topic are in its body.

    The body has the last word on ``topic``: snapshots of earlier versions name that of an id's first chunk for all.
    """

    position: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    topic: str


@dataclass(slots=True)
class Staged:
    """What lies staged at this shard under one id; ``recorded``: chunk -> position of the state record about it."""

    coordinator: str
    expires_ms: int
    chunks: dict[int, Chunk] = field(default_factory=dict)
    recorded: dict[int, int] = field(default_factory=dict)

    @property
    def first_position(self) -> int:
        """Where in the log the oldest of it lies."""
        return min(chunk.position for chunk in self.chunks.values())


class StagingTable(Table):
    """Writers and staged data of one broker."""

    file_name = "stagedWrites.json"
    kinds = frozenset({WRITER, STAGED, STAGED_GONE})

    def __init__(self) -> None:
        super().__init__()
        self.writers: dict[str, Writer] = {}
        self.staged: dict[StagedId, Staged] = {}
        self.published: dict[str, tuple[int, int]] = {}  # writer -> last batch published here, position of that record
        self._published_ms: dict[str, int] = {}
        self._positions: dict[str, int] = {}
        self._gone: dict[StagedId, int] = {}

    def published_batch(self, writer: str) -> int:
        """The last batch of ``writer`` that is published at this shard, -1 without one."""
        return self.published.get(writer, (-1, LOADED))[0]

    def first_position(self) -> tuple[int, str] | None:
        """Where in the log the oldest staged data lies, and whose it is."""
        return min(((staged.first_position, each.writer) for each, staged in self.staged.items()), default=None)

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if position < self.base:
            return
        if kind == WRITER:
            writer = Writer.from_json(document)
            if position > self._positions.get(writer.name, LOADED):
                self.writers[writer.name] = writer
                self._positions[writer.name] = position
                self.changes += 1
        elif kind == STAGED:
            self._apply_staged(position, document)
        else:
            self._apply_gone(position, document)

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for name in list(self.writers):
            if self._positions.get(name, position) < position:
                yield WRITER, self.writers[name].to_json()
        for each, staged in list(self.staged.items()):
            for number, held in list(staged.recorded.items()):
                if held < position and self.staged.get(each) is staged:
                    yield STAGED, staged_body(each, staged, number)
        for writer in list(self.published):
            batch, held = self.published.get(writer, (-1, position))
            if held < position:
                yield STAGED_GONE, gone_body(writer, batch, (), published_ms=self._published_ms.get(writer, 0))

    def expire(self, now_ms: int) -> None:
        """Forget writers that were idle for a month and left nothing behind."""
        for name, writer in list(self.writers.items()):
            if writer.finished and now_ms - writer.touched_ms > REMEMBERED_MS:
                del self.writers[name], self._positions[name]
                self.changes += 1
        for name, published_ms in list(self._published_ms.items()):
            if now_ms - published_ms > REMEMBERED_MS:
                del self._published_ms[name]
                self.published.pop(name, None)
                self.changes += 1

    def forget_deleted(self, dispatched: int) -> None:
        self._gone = {each: position for each, position in self._gone.items() if position >= dispatched}

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        writers = [Writer.from_json(each) for each in document["writers"]]
        rows = [(_id_of(each), each) for each in document["staged"]]
        published = {str(w): (int(batch), int(ms)) for w, (batch, ms) in document["published"].items()}
        for writer in writers:
            self.writers[writer.name] = writer
            self._positions[writer.name] = LOADED
        for each, row in rows:
            self._put_chunk(LOADED, each, row)
        for name, (batch, published_ms) in published.items():
            self.published[name] = (batch, LOADED)
            self._published_ms[name] = published_ms

    def pieces(self) -> Iterator[str]:
        yield '\t"writers":['
        yield from _rows(writer.to_json() for writer in list(self.writers.values()))
        yield '],\n\t"staged":['
        yield from _rows(
            staged_body(each, staged, number)
            for each, staged in list(self.staged.items())
            for number in list(staged.chunks)  # it may be added to between two pieces
        )
        yield '],\n\t"published":'
        yield json.dumps(
            {name: [batch, self._published_ms.get(name, 0)] for name, (batch, _) in self.published.items()}
        )

    def _apply_staged(self, position: int, document: Mapping[str, Any]) -> None:
        each = _id_of(document)
        if position > self._gone.get(each, LOADED):
            self._put_chunk(position, each, document)
            self.changes += 1

    def _put_chunk(self, position: int, each: StagedId, document: Mapping[str, Any]) -> None:
        number = int(document["chunk"])
        chunk = Chunk(int(document["position"]), int(document["count"]), str(document["topic"]))
        staged = self.staged.get(each)
        if staged is None:
            staged = self.staged[each] = Staged(str(document["coordinator"]), int(document["expiresMs"]))
        staged.chunks.setdefault(number, chunk)  # sent again: the first copy counts
        staged.recorded[number] = max(position, staged.recorded.get(number, LOADED))

    def _apply_gone(self, position: int, document: Mapping[str, Any]) -> None:
        writer, batch = str(document["writer"]), int(document["batch"])
        for key in document["keys"]:
            each = StagedId(writer, batch, str(key))
            held = self.staged.get(each)
            if held is not None and max(held.recorded.values()) < position:
                del self.staged[each]
            self._gone[each] = max(position, self._gone.get(each, LOADED))
        published_ms = document.get("publishedMs")
        if published_ms is not None and batch >= self.published_batch(writer):
            self.published[writer] = (batch, position)
            self._published_ms[writer] = int(published_ms)
        self.changes += 1


def staged_body(each: StagedId, staged: Staged, number: int) -> dict[str, Any]:
    """The body of a ``STAGED`` record."""
    chunk = staged.chunks[number]
    return {
        "writer": each.writer,
        "batch": each.batch,
        "key": each.key,
        "chunk": number,
        "topic": chunk.topic,
        "coordinator": staged.coordinator,
        "expiresMs": staged.expires_ms,
        "position": chunk.position,
        "count": chunk.count,
    }


def gone_body(writer: str, batch: int, keys: Iterable[str], *, published_ms: int | None = None) -> dict[str, Any]:
    """The body of a ``STAGED_GONE`` record; ``published_ms``: when the batch was published at this shard."""
    body: dict[str, Any] = {"writer": writer, "batch": batch, "keys": list(keys)}
    if published_ms is not None:
        body["publishedMs"] = published_ms
    return body


def _checked_keys(keys: dict[str, dict[str, int]]) -> Keys:
    """``keys`` as they are: there may be very many."""
    for shards in keys.values():
        _checked_numbers(shards)
    return keys


def _checked_numbers(numbers: dict[str, int]) -> Mapping[str, int]:
    """``numbers``, if they are. Raises TypeError or AttributeError."""
    if not all(type(number) is int for number in numbers.values()):
        raise TypeError("not a number")
    return numbers


def _id_of(document: Mapping[str, Any]) -> StagedId:
    return StagedId(str(document["writer"]), int(document["batch"]), str(document["key"]))


def _rows(documents: Iterable[dict[str, Any]]) -> Iterator[str]:
    separator = "\n"
    for document in documents:
        yield f"{separator}{json.dumps(document, separators=(',', ':'))}"
        separator = ",\n"
