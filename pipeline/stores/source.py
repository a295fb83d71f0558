"""The data source ``penstock_store`` as Spark sees it.

The listing is made when the DataFrame is loaded and travels with it, so every query on that DataFrame sees the same
bytes, also while a broker appends. There is deliberately no push-down of filters: in PySpark 4.3 filters that one
query pushes stay in force for the next query on the same DataFrame. Options and the schema prune instead.

Spark imports this module in several short processes per query, so what loads kernels is imported where it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.proto.errors import ConfigError

from ..columns.schema import (
    CORRUPT_COLUMN,
    HIDDEN_COLUMNS,
    NEVER_NULL,
    STORE_COLUMNS,
    as_struct,
    check_schema,
    with_properties,
)
from ..spark.workers import keep_loaded
from .derived import (
    INDEX_COLUMNS,
    PART_COLUMNS,
    QUEUE_COLUMNS,
    QUEUE_PART_COLUMNS,
    DerivedSplit,
    plan_index,
    plan_queues,
    read_queue,
)
from .model import Store
from .options import SOURCE, StoreOptions, parse_options
from .scan.planning import Split, plan_splits, require_range
from .scan.segments import SEGMENT_COLUMNS, first_time, read_segment

log = logging.getLogger(__name__)

_DERIVED = {
    "queues": QUEUE_COLUMNS,
    "index": INDEX_COLUMNS,
    "segments": SEGMENT_COLUMNS,
    "queue_parts": QUEUE_PART_COLUMNS,
}
_NO_STREAM = (
    f"{SOURCE}: a store is read as it is, not as a stream: use spark.read, or spark.readStream.format('penstock') for "
    "the topics of a running broker"
)
_NO_WRITER = (
    f"{SOURCE}: stores are only read, their brokers write them: send with df.write.format('penstock'), or keep rows "
    "with format('parquet')"
)


class StorePartition(InputPartition):
    """The work of one task."""

    def __init__(self, split: Split | DerivedSplit, store: int) -> None:
        super().__init__(None)
        self.split = split
        self.store = store  # number of the store in the listing


class StoreDataSource(DataSource):
    """``spark.read.format("penstock_store").option("storePath", …)``; options: :mod:`.options`.

    Raises ConfigError: an option is unknown or wrong, or a directory is missing.
    Raises WrongStore: a directory is no store.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return SOURCE

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        from .directory import list_stores

        if any(name.lower() == "checkpointlocation" for name in options):  # only writers of streams are given one
            raise ConfigError(_NO_WRITER)
        self._options = parse_options(options)
        given = self._options
        self._stores = list_stores(SOURCE, given.roots, given.broker_names, given.up_to, "brokerName")
        keep_loaded()

    def schema(self) -> Any:
        """All columns of the view."""
        return as_struct(_columns(self._options), _never_null(self._options))

    def reader(self, schema: Any) -> StoreReader:
        """The reader of the columns in ``schema``."""
        known = _columns(self._options)
        if self._options.view == "messages":
            known = known | HIDDEN_COLUMNS
        check_schema(schema, known, SOURCE, _never_null(self._options))
        if not schema.fields:
            raise ConfigError(f"{SOURCE}: the schema names no column: name one, as brokerName, for a count")
        return StoreReader(self._options, self._stores, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """One that refuses: Spark hides what this method itself would raise behind an error of its own."""
        return _NoStream()

    def writer(self, schema: Any, overwrite: bool) -> NoReturn:
        """Refuses."""
        raise ConfigError(_NO_WRITER)

    streamWriter = writer


class _NoStream(DataSourceStreamReader):
    """A stream that ends with the first thing that Spark asks of it."""

    def read(self, *asked: Any, **named: Any) -> NoReturn:
        raise ConfigError(_NO_STREAM)

    initialOffset = latestOffset = partitions = read


def _never_null(options: StoreOptions) -> frozenset[str]:
    """A row that stands for damage has nulls anywhere."""
    return NEVER_NULL if options.view == "messages" and options.on_corrupt != "emit" else frozenset()


def _columns(options: StoreOptions) -> dict[str, str]:
    if options.view in _DERIVED:
        return _DERIVED[options.view]
    columns = PART_COLUMNS if options.view == "parts" else with_properties(STORE_COLUMNS, options.properties)
    return columns | CORRUPT_COLUMN if options.on_corrupt == "emit" else columns


class StoreReader(DataSourceReader):
    """Plans on the driver, reads in the workers; holds plain data only, since it is pickled."""

    def __init__(self, options: StoreOptions, stores: list[Store], schema: Any) -> None:
        self._options = options
        self._stores = stores
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One per task; the same for every call.

        Raises ConfigError: a wanted topic, queue or log position is in none of the stores.
        """
        require_range(self._stores, self._options)
        if self._options.topics or self._options.queue_ids:
            from .topic_names import require_queue_ids, require_topics

            require_topics(self._stores, self._options)
            require_queue_ids(self._stores, self._options)
        parts: list[InputPartition] = [
            StorePartition(split, number) for number, store in enumerate(self._stores) for split in self._plan(store)
        ]
        if not parts and self._options.view == "messages":
            log.warning("no log file has messages of the wanted time: %s", self._times())
        keep_loaded()
        return parts

    def _times(self) -> str:
        """What the stores have: when the first message of each was stored."""
        told = []
        for store in self._stores:
            first = next((time for time in (first_time(store, file) for file in store.files) if time is not None), None)
            since = "no message" if first is None else f"messages since {datetime.fromtimestamp(first / 1000, UTC)}"
            told.append(f"{store.root} has {since}")
        return "; ".join(told)

    def _plan(self, store: Store) -> Iterator[Split | DerivedSplit]:
        if self._options.view in ("queues", "queue_parts"):
            return plan_queues(store, self._options)
        if self._options.view == "index":
            return plan_index(store)
        if self._options.view == "segments":
            return (Split(store.root, store.broker_name, file, 0, file.end) for file in store.files)
        if self._options.verify == "full":
            from .scan.proving import require_queues

            require_queues(store.root)
        picked = None
        if self._options.use_consume_queue and self._options.topics:
            from .scan.picking import plan_picks

            picked = plan_picks(store, self._options, lambda file: first_time(store, file))
        if picked is not None:
            return iter(picked)
        return plan_splits(store, self._options, lambda file: first_time(store, file))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; none for the one that Spark makes of an empty list."""
        if not isinstance(partition, StorePartition):
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        split, store = partition.split, self._stores[partition.store]
        if isinstance(split, DerivedSplit):
            yield from self._read_derived(split, schema)
        elif self._options.view == "segments":
            yield from read_segment(split, store.tail, schema, check_crc=self._options.verify != "none")
        else:
            from .scan.messages import read_split

            keep_loaded()
            yield from read_split(split, self._options, schema)

    def _read_derived(self, split: DerivedSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if split.index_path:
            from .index import read_index

            return read_index(split, schema)
        if self._options.view == "queues":
            return read_queue(split, schema)
        from .parts import read_queue_parts

        keep_loaded()
        return read_queue_parts(split, schema, self._options.part_offsets)
