"""``format("penstock")`` as Spark sees it: one class that makes readers and writers.

There is deliberately no push-down of filters: in PySpark 4.3 filters that one query pushes stay in force for the next
query on the same DataFrame. Options and the schema prune instead. Everything here is pickled to other processes, so
nothing here holds a connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.proto.errors import ConfigError, NameserverUnavailable, RouteNotFound

from ...columns.schema import MESSAGE_COLUMNS, NEVER_NULL, as_struct, check_schema, with_properties
from ...spark.workers import keep_loaded
from .. import kafka
from ..offsets import Queue, Slice, slices
from ..options import SinkOptions, SourceOptions, properties_form, sink_options, source_options
from ..waiting import waiting_s
from .planning import plan

if TYPE_CHECKING:
    from ..cluster import Positions

NAME = "penstock"


class TopicPartition(InputPartition):
    """The work of one task: slices of queues."""

    def __init__(self, wanted: list[Slice]) -> None:
        super().__init__(None)
        self.slices = wanted


class TopicDataSource(DataSource):
    """Topics of a cluster, read and written; options: :mod:`.options`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        keep_loaded()

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def schema(self) -> Any:
        """All columns of a message."""
        return as_struct(with_properties(MESSAGE_COLUMNS, properties_form(self.options)), NEVER_NULL)

    def reader(self, schema: Any) -> TopicReader:
        """Reads what the topics hold now."""
        options = source_options(self.options, streaming=False)
        _check_columns(schema, options)
        return TopicReader(options, schema)

    def streamReader(self, schema: Any) -> Any:
        """Reads what the topics get."""
        from .stream import TopicStreamReader

        options = source_options(self.options, streaming=True)
        _check_columns(schema, options)
        return TopicStreamReader(options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Writes a DataFrame. Raises ConfigError: ``overwrite``; or an option or column is wrong."""
        from penstock.client.cluster import again

        from ..write.sink import TopicBatchWriter

        if overwrite:
            raise ConfigError("penstock sink: a topic cannot be overwritten: say mode('append')")
        options = sink_options(self.options, streaming=False)
        made = TopicBatchWriter(options, schema)
        again(lambda: _check_target(options), waiting_s(options.retry_timeout_ms, streaming=False))
        keep_loaded()
        return made

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Writes a stream."""
        from ..write.sink import TopicStreamWriter

        options = sink_options(self.options, streaming=True)
        made = TopicStreamWriter(options, schema)
        # Tasks wait for who does not answer: a stream does not end because nobody does just now.
        with contextlib.suppress(NameserverUnavailable, RouteNotFound):
            _check_target(options)
        return made


def _check_target(options: SinkOptions) -> None:
    """That the topics of the options are there, before any task runs. Raises as ``Cluster.route``."""
    from ..cluster import cluster

    for topic in filter(None, (options.topic, options.dead_letter_topic)):
        cluster(options.name_server, options.security).route(topic)


def _check_columns(schema: Any, options: SourceOptions) -> None:
    check_schema(schema, with_properties(MESSAGE_COLUMNS, options.properties), NAME, NEVER_NULL, kafka.SOURCE_COLUMNS)
    if not schema.fields:
        raise ConfigError(f"{NAME}: the schema names no column: name one, as queueId, for a count")


class TopicReader(DataSourceReader):
    """A batch read: planned on the driver from the queues' positions, read in the workers."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One per task.

        Raises RouteNotFound: a broker group of a topic was down for ``driverRetryTimeoutMs``, with ``failOnDataLoss``.
        """
        from penstock.client.cluster import again

        from ..cluster import cluster
        from .starting import check_filter, ending_offsets, starting_offsets

        options = self._options
        timeout_s = options.timeout_s
        view = cluster(options.name_server, options.security)

        def places() -> tuple[dict[Queue, int], dict[Queue, int], Positions]:
            begin, positions = starting_offsets(view, options, timeout_s=timeout_s)
            return begin, ending_offsets(view, options, positions, timeout_s=timeout_s), positions

        begin, end, positions = again(places, timeout_s)
        check_filter(view, options, positions)
        backwards = sorted(queue for queue in end if begin[queue] > end[queue])
        times = options.starting.timestamp_ms, options.ending.timestamp_ms
        by_time = options.starting.at == "timestamp", options.ending.at == "timestamp"
        if all(by_time) and times[0] > times[1]:
            since, until = (datetime.fromtimestamp(at_ms / 1000, UTC).isoformat() for at_ms in times)
            raise ConfigError(
                f"{options.starting.option} {since} is behind {options.ending.option} {until}: nothing is between"
            )
        # Who names offsets means messages that are there. A time, or what a group has read, may be behind all of them.
        if backwards and (options.starting.at in ("latest", "offsets") or not any(by_time)):
            queue = backwards[0]
            if options.starting.at == "earliest":
                raise ConfigError(
                    f"queue {queue}: {options.ending.option} asks for {end[queue]}: the messages before {begin[queue]} "
                    "were deleted"
                )
            raise ConfigError(
                f"queue {queue}: {options.starting.option} begins at {begin[queue]}, behind "
                f"{options.ending.option}'s {end[queue]}"
            )
        begin = {queue: min(offset, end[queue]) for queue, offset in begin.items()}
        mean_bytes = {queue: held.mean_bytes for queue, held in positions.items()}
        keep_loaded()
        return [TopicPartition(group) for group in planned(slices(begin, end), mean_bytes, options)]

    def read(self, partition: Any) -> Iterator[Any]:
        """The messages of a partition as record batches; none for the one that Spark makes of an empty list."""
        yield from read_partition(self._options, self._schema, partition)


def planned(wanted: list[Slice], mean_bytes: Mapping[Queue, int], options: SourceOptions) -> list[list[Slice]]:
    """Slices in groups, one for each task, of the sizes that the options ask for."""
    return plan(
        wanted,
        mean_bytes,
        target_bytes=options.target_bytes_per_partition,
        at_least=options.min_partitions,
        at_most=options.max_partitions,
    )


def read_partition(options: SourceOptions, schema: Any, partition: Any) -> Iterator[Any]:
    """The messages of a partition; imports what reads them here, in the worker."""
    if not isinstance(partition, TopicPartition):
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    from ..cluster import cluster
    from .reading import SliceReader

    keep_loaded()
    reader = SliceReader(
        cluster(options.name_server, options.security), options, to_arrow_schema(schema, timezone="UTC")
    )
    yield from reader.read(partition.slices)
