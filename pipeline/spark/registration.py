"""The data sources, made known to a session."""

from __future__ import annotations

import importlib
from typing import Any

from ..requirements import require_spark

SOURCES = (
    ("penstock.pipeline.stores.source", "StoreDataSource"),
    ("penstock.pipeline.topics.read.source", "TopicDataSource"),
)
"""Modules, and the data source's class in each."""


def register(spark: Any) -> None:
    """Make the formats of Penstock known to ``spark``; registering again is harmless.

    Raises:
        ConfigError: the packages of the extra ``penstock-mq[spark]`` are missing.
    """
    require_spark()
    for module, name in SOURCES:
        spark.dataSource.register(getattr(importlib.import_module(module), name))
