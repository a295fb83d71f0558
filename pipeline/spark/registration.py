"""The data sources, made known to a session.

Spark's planner of streams puts four variables into the environment of a source's function, which all queries of a
session share, while other queries' tasks are serialised with it: a task that meets a map that just grows cannot be read
back (``OptionalDataException``), and its query ends. So our functions have these variables from the beginning: what is
put then changes values, and the map never grows. The sources that Spark finds by itself, without :func:`register`,
share an empty map.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from ..requirements import require_spark
from . import own_errors

SOURCES = (
    ("penstock.pipeline.stores.source", "StoreDataSource"),
    ("penstock.pipeline.topics.read.source", "TopicDataSource"),
)
"""Modules, and the data source's class in each."""
PLANNER_VARIABLES = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
"""Source: Spark's ``PythonStreamingSourceRunner.init``, which sets their values each time."""
_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"
"""Spark's logger, whose only warning, at each start of a stream, is of a source registered that it has found, too."""
_lock = threading.Lock()
"""Held while a session, and pyspark, are changed."""


def register(spark: Any) -> None:
    """Make the formats of Penstock known to ``spark``, and the calling thread able to write; again is harmless.

    Spark looks for a source to write to in the thread's active session alone, and a new thread has none.

    From then on their errors are of :mod:`penstock.proto.errors`' classes besides Spark's, see :mod:`.own_errors`.
    Raises ConfigError: the packages of the extra ``penstock-mq[spark]`` are missing.
    """
    require_spark()
    context = getattr(spark, "sparkContext", None)  # a Connect session has none
    with _lock, _complete_environment(context) if context is not None else contextlib.nullcontext():
        own_errors.install()
        for module, name in SOURCES:
            spark.dataSource.register(getattr(importlib.import_module(module), name))
    if context is not None:
        context._jvm.SparkSession.setActiveSession(spark._jsparkSession)


@contextlib.contextmanager
def _complete_environment(context: Any) -> Iterator[None]:
    """Functions that are made meanwhile have the planner's variables; who goes through the others may go on."""
    before = context.environment
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_LOGGER, log4j.Level.ERROR)
    context.environment = dict.fromkeys(PLANNER_VARIABLES, "") | before
    try:
        yield
    finally:
        context.environment = before
