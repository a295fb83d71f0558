"""A source that has its rows already: how fast Spark takes batches with these columns from a Python worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.pipeline.columns.schema import NEVER_NULL, STORE_COLUMNS, as_struct

TASKS = 8


class CeilingSource(DataSource):
    """``rows`` rows, the first batch of the store ``storePath`` again and again."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "penstock_ceiling"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._store, self._rows = options["storePath"], int(options["rows"])

    def schema(self) -> Any:
        """All columns of messages."""
        return as_struct(STORE_COLUMNS, NEVER_NULL)

    def reader(self, schema: Any) -> CeilingReader:
        """The reader of these columns."""
        return CeilingReader(self._store, self._rows, schema)


class CeilingReader(DataSourceReader):
    """Reads a batch, and passes it on until there have been enough rows."""

    def __init__(self, store: str, rows: int, schema: Any) -> None:
        self._store = store
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Some tasks of the same size."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's share of the rows."""
        from penstock.pipeline.spark.workers import keep_loaded
        from penstock.pipeline.stores.directory import list_store
        from penstock.pipeline.stores.options import StoreOptions
        from penstock.pipeline.stores.scan.messages import read_split
        from penstock.pipeline.stores.scan.planning import plan_splits

        keep_loaded()
        options = StoreOptions(roots=(self._store,))
        split = next(iter(plan_splits(list_store(self._store), options)))
        batch = next(read_split(split, options, to_arrow_schema(self._schema, timezone="UTC")))
        left = self._rows // TASKS
        while left:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
