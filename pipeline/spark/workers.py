"""What every Python worker of Spark does at the start of a task, and behind what it plans."""

from __future__ import annotations

import gc
import sys

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Spark's names for what a task of a stream can ask its context."""

_modules = 0


def keep_loaded() -> None:
    """Have the collector pass over what is loaded by now; call it behind the imports of a task, or of a plan.

    Spark has a worker collect garbage after each task and each plan. Looking at every object of the compiler's run
    time takes a tenth of a second, as long as reading ten megabytes does. Done again only when modules have been loaded
    since, as Spark does at the end of a first task: garbage of later ones is still found.
    """
    global _modules
    if len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()
