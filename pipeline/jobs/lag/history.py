"""The samples of one job, in the lake: a file for each, and in the checkpoint what the next one needs.

::

    lag/dt=2026-03-01/<history>-<time in ms>.parquet

A file is planned in the checkpoint, then put in place whole. So a job that was killed finds either no file under the
planned name, and takes a later sample, or the whole of it, and goes on behind it: no row is there twice, and the rates
of the next sample are over the real time. The day (UTC) and the time are those of the sample's ``interval``. Several
jobs may write to one lake.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.proto.errors import ConfigError, StorageError

from ...lake.lake import Lake
from ...stores.files import Folder
from .columns import LAG_SCHEMA, Sample, row_of

FOLDER = "lag"
KEPT_FILE = "penstock-lag.json"
"""In a checkpoint."""

Source = tuple[str, str]
"""Group and broker group: their queues are read together."""
Place = tuple[str, str, str]
"""Group, topic, broker group."""


@dataclass(slots=True)
class History:
    """What is known of earlier samples; one process at a time has it."""

    lake: Lake
    checkpoint: Folder
    name: str = field(default_factory=lambda: uuid4().hex)
    planned: str = ""  # the newest sample's file, which may not be there
    last_ms: int = 0  # when that sample was due
    files: dict[Source, str] = field(default_factory=dict)  # where the last sample of each is
    seen: dict[Source, dict[tuple[str, int], Sample]] = field(
        default_factory=dict
    )  # what those say, by topic and queue
    places: set[Place] = field(default_factory=set)  # all that were ever seen, whoever has forgotten them since

    @classmethod
    def opened(cls, lake: Lake, checkpoint: str) -> History:
        """The history that a checkpoint belongs to, or a new one.

        Raises ConfigError: what is kept there is damaged, or the file system is not known here.
        Raises StorageError: it cannot be read.
        """
        made = cls(lake, Folder(checkpoint))
        try:
            kept = made.checkpoint.read(KEPT_FILE)
            if kept is not None:
                made._take(kept)
            for path in {made.planned, *made.files.values()} - {""}:
                made._look_into(path)
        except OSError as error:
            raise StorageError(f"{checkpoint}: what was seen before cannot be read: {error}") from error
        return made

    def plan(self, now_ms: int) -> int:
        """When the next sample is due, in ms: now, or right behind the one before, whatever the clock says.

        Raises StorageError: it cannot be kept.
        """
        self.last_ms = max(now_ms, self.last_ms + 1)
        day = datetime.fromtimestamp(self.last_ms / 1000, UTC)
        self.planned = f"{FOLDER}/dt={day:%Y-%m-%d}/{self.name}-{self.last_ms}.parquet"
        self.keep()
        return self.last_ms

    def add(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """Write the planned sample; its rows. Without any, nothing is written.

        Raises StorageError: it cannot be written; nothing was added.
        """
        rows = [row_of(self.last_ms, each, self._before(each)) for each in samples]
        if not rows:
            return rows
        table = pa.Table.from_pylist(rows, LAG_SCHEMA)
        try:
            with self.lake.drafted(self.planned) as draft:
                pq.write_table(table, draft, filesystem=self.lake.files, compression="zstd")
        except OSError as error:
            raise StorageError(f"{self.lake.root}/{self.planned}: the sample is not written: {error}") from error
        self._see(self.planned, samples)
        return rows

    def keep(self) -> None:
        """Keep what the next run needs, whole or not at all. Raises StorageError."""
        document = {
            "history": self.name,
            "planned": self.planned,
            "last": self.last_ms,
            "files": sorted([*source, path] for source, path in self.files.items()),
            "places": sorted(self.places),
        }
        try:
            self.checkpoint.write(KEPT_FILE, json.dumps(document, indent=1).encode())
        except OSError as error:
            raise StorageError(f"{self.checkpoint.root}/{KEPT_FILE} cannot be written: {error}") from error

    def _take(self, kept: bytes) -> None:
        try:
            found = json.loads(kept)
            self.name, self.planned, self.last_ms = str(found["history"]), str(found["planned"]), int(found["last"])
            self.files = {(group, broker): path for group, broker, path in found["files"]}
            self.places = {(group, topic, broker) for group, topic, broker in found["places"]}
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"lag: {self.checkpoint.root}/{KEPT_FILE} is damaged ({error!r}): delete it; the next sample will "
                "have no rates"
            ) from error

    def _look_into(self, path: str) -> None:
        """Take over what a file says of those whose last sample it has; the planned one's, if it is there, of all."""
        names = ["time", "consumerGroup", "topic", "brokerName", "queueId", "endOffset", "committedOffset"]
        try:
            table = pq.ParquetFile(f"{self.lake.path}/{path}", filesystem=self.lake.files).read(names)
        except FileNotFoundError:  # never written, or deleted since
            return
        except pa.ArrowInvalid as error:
            raise StorageError(f"{self.lake.root}/{path}: {error}: delete it") from error
        rows = zip(*(table[name].to_pylist() for name in names), strict=True)
        samples = [
            Sample(round(time.timestamp() * 1000), group, topic, broker, number, 0, end, committed)
            for time, group, topic, broker, number, end, committed in rows
        ]
        if path != self.planned:
            samples = [each for each in samples if self.files.get((each.group, each.broker)) == path]
        self._see(path, samples)

    def _see(self, path: str, samples: Iterable[Sample]) -> None:
        """These are the last ones of their groups at their brokers: a queue that is not among them is forgotten."""
        fresh: dict[Source, dict[tuple[str, int], Sample]] = {}
        for each in samples:
            fresh.setdefault((each.group, each.broker), {})[each.topic, each.queue_id] = each
        self.seen |= fresh
        self.files |= dict.fromkeys(fresh, path)

    def _before(self, sample: Sample) -> Sample | None:
        return self.seen.get((sample.group, sample.broker), {}).get((sample.topic, sample.queue_id))
