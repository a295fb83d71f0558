"""``format("penstock_lag")``: a stream of samples of a cluster, and the files that their rows go to. Of this package.

A stream's offset is the time for which a sample was planned. The sample itself is taken by the batch's one task: should
the batch be repeated, after a death or a failed task, it is taken anew, and its values, with the time that belongs to
them, are later ones. That is right for samples, as the repeated batch replaces its rows and its state as a whole. How
often samples are planned is the trigger's matter.

| Option | Meaning |
|---|---|
| nameserver, groups, topics | where, and of what; names separated by commas |
| tlsCaFile and so on | as for `penstock` |
| samples | how many this run plans; without it, one whenever Spark asks |
| timeout | ms that a broker group is waited for in each call; 5000 by default |
| lake | for writing: the lake |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from penstock.proto.errors import ConfigError
from penstock.runtime.security.credentials import SecurityFiles

from ...columns.schema import as_struct
from ...options import Options
from ...spark.arrow_types import arrow_schema
from ...spark.workers import BATCH_ID, QUERY_ID, keep_loaded
from ...topics.options import SECURITY, security_given, security_options
from .columns import SAMPLE_COLUMNS

log = logging.getLogger(__name__)

NAME = "penstock_lag"
LEFT = "left"
"""In what the stream reports as its latest offset: how many samples of this run are still to be planned."""


class LagDataSource(DataSource):
    """Samples to read, rows to write."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def schema(self) -> Any:
        """The columns of a sample."""
        return as_struct(SAMPLE_COLUMNS)

    def streamReader(self, schema: Any) -> LagStreamReader:
        """Takes samples."""
        options = self.options
        groups, topics = (tuple(filter(None, options.get(name, "").split(","))) for name in ("groups", "topics"))
        samples = options.get("samples")
        named = {each.name.lower() for each in SECURITY}
        given = {name: value for name, value in options.items() if name.lower() in named}
        security = security_given(Options(NAME, None, SECURITY).read(given))
        left = None if samples is None else int(samples)
        timeout_ms = options.get("timeout")
        timeout_s = None if timeout_ms is None else int(timeout_ms) / 1000
        return LagStreamReader(options["nameserver"], groups, topics, left, security, timeout_s)

    def streamWriter(self, schema: Any, overwrite: bool) -> LagStreamWriter:
        """Writes rows."""
        return LagStreamWriter(self.options["lake"])


class SamplePartition(InputPartition):
    """A sample: ``at``, in ms, says when it was planned."""

    def __init__(self, at: int) -> None:
        super().__init__(None)
        self.at = at


class LagStreamReader(DataSourceStreamReader):
    """Plans samples in the driver and takes them in workers."""

    def __init__(
        self,
        name_server: str,
        groups: tuple[str, ...],
        topics: tuple[str, ...],
        left: int | None,
        security: SecurityFiles | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._name_server = name_server
        self._security = security or SecurityFiles.from_environment()
        self._groups = groups
        self._topics = topics
        self._left = left
        self._timeout_s = timeout_s

    def initialOffset(self) -> dict[str, int]:
        """Before every sample."""
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """A sample is never cut."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """One sample more, while there is one to plan; later than the one before, whatever the clock says."""
        if self._left == 0:
            return start
        if self._left is not None:
            self._left -= 1
        return {"at": max(time.time_ns() // 1_000_000, start["at"] + 1)}

    def reportLatestOffset(self) -> dict[str, int] | None:
        """What is left; the progress of a batch that an earlier run had planned says nothing of it."""
        return None if self._left is None else {LEFT: self._left}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task."""
        return [SamplePartition(end["at"])]

    def read(self, partition: Any) -> Iterator[Any]:
        """Take the sample, as a record batch."""
        import pyarrow as pa

        from ...topics.cluster import cluster
        from .sampling import take_sample

        keep_loaded()
        asked = cluster(self._name_server, self._security)
        found = take_sample(asked, self._groups, self._topics, timeout_s=self._timeout_s)
        log.debug("sample taken at=%d rows=%d", partition.at, len(found))
        rows = [dict(zip(SAMPLE_COLUMNS, (partition.at, *sample), strict=True)) for sample in found]
        yield pa.RecordBatch.from_pylist(rows, arrow_schema(SAMPLE_COLUMNS))

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept for a repetition."""

    def stop(self) -> None:
        """Nothing to give back: connections belong to the process."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int = 0


class LagStreamWriter(DataSourceStreamArrowWriter):
    """Each task puts its own file in place: see :mod:`.files`."""

    def __init__(self, lake: str) -> None:
        self._lake = lake

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write one partition of a micro-batch."""
        from ...lake.lake import Lake
        from .files import write_rows

        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if not query or batch is None:
            raise ConfigError(f"{NAME}: Spark does not say {QUERY_ID} and {BATCH_ID}: unknown Spark version")
        keep_loaded()
        rows = write_rows(Lake(self._lake), iterator, query, int(batch), context.partitionId(), context.taskAttemptId())
        return Written(rows)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Nothing: the files are there, and a repetition replaces them."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing: a repetition replaces what is there."""


def register_lag(spark: Any) -> None:
    """Make the format known to a session; doing it again is harmless."""
    spark.dataSource.register(LagDataSource)


def lag_options(name_server: str, groups: tuple[str, ...], topics: tuple[str, ...]) -> Mapping[str, str]:
    """The options for reading."""
    given = {"nameserver": name_server, "groups": ",".join(groups), "topics": ",".join(topics)}
    return given | security_options(SecurityFiles.from_environment())
