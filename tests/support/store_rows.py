"""What the Spark source of stores makes of them, without Spark's own part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.pipeline.columns.schema import STORE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.options import StoreOptions
from penstock.pipeline.stores.scan.messages import read_split
from penstock.pipeline.stores.scan.planning import Split


def rows_of(
    splits: Iterable[Split], options: StoreOptions, columns: Mapping[str, str] = STORE_COLUMNS
) -> list[dict[str, Any]]:
    """The rows of these splits."""
    schema = arrow_schema(columns)
    batches = [batch for split in splits for batch in read_split(split, options, schema)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema).to_pylist()
