"""The jobs, by the name that ``penstock pipeline`` knows them by. Nothing is imported before it is used."""

from __future__ import annotations

import importlib
from typing import Any

_HERE = "penstock.pipeline.jobs"
JOBS = {
    "archive": (f"{_HERE}.archive", "Sealed log files of stores into a Parquet lake with manifests."),
    "audit": (f"{_HERE}.audit", "Histories of drills and load tests against the invariants, and against stores."),
    "query": (f"{_HERE}.query", "Messages of a lake by topic, time, key or id."),
    "rebuild": (f"{_HERE}.rebuild", "Consume queues of a large store, from its log, into a new directory."),
    "stats": (f"{_HERE}.stats", "Statistics per topic and queue: sizes, skew, keys, tags, growth."),
    "verify": (f"{_HERE}.verify", "Every record of stores, their queues and index; differences between replicas."),
}
"""Name, module, one line of help."""


def load_job(name: str) -> Any:
    """The module of a job, with its ``Config`` and ``run``."""
    return importlib.import_module(JOBS[name][0])
