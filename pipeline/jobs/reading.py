"""Stores as the jobs read them."""

from __future__ import annotations

from typing import Any

from ..registration import register

TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, INNER_BATCH = 12, 4, 12, 128


def read_stores(spark: Any, roots: tuple[str, ...], schema: str = "", **options: object) -> Any:
    """A frame of ``penstock_store``; options that are None, empty or False are left out."""
    register(spark)
    reader = spark.read.format("penstock_store").option("storePath", ",".join(roots))
    for name, value in options.items():
        if value is None or value == () or value == "" or value is False:
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        reader = reader.option(name, "true" if value is True else text)
    return (reader.schema(schema) if schema else reader).load()


def local_path(path: str) -> str:
    """A path as Spark understands it: plain ones are of this machine's file system, not of a cluster's default one."""
    import os

    return path if "://" in path else f"file://{os.path.abspath(path)}"
