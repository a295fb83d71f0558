"""The jobs, by the name that ``penstock pipeline`` knows them by. Nothing is imported before it is used:
this module is here, and not in :mod:`.jobs`, so that the command line lists them without Spark."""

from __future__ import annotations

import importlib
from typing import Any

_HERE = "penstock.pipeline.jobs"
JOBS = {
    "archive": (f"{_HERE}.archive.job", "Sealed log files of stores into a Delta lake."),
    "archive-topic": (f"{_HERE}.archive.topic", "Topics of a running cluster into a Delta lake, over the network."),
    "audit": (f"{_HERE}.audit.job", "Histories of drills and load tests against the invariants, and against stores."),
    "dead-letters": (f"{_HERE}.dead_letters", "Dead letters by group, topic and tag; and back into a topic."),
    "lag": (f"{_HERE}.lag.job", "How far consumer groups are behind, at every interval, as rows of a lake."),
    "mirror": (f"{_HERE}.mirror", "A topic into another cluster's topic, each message once."),
    "query": (f"{_HERE}.query", "Messages of a lake by topic, time, key or id."),
    "rebuild": (f"{_HERE}.rebuild.job", "Consume queues of a large store, from its log, into a new directory."),
    "replay": (f"{_HERE}.replay", "Messages of a lake back into a topic, in order, at a limited rate."),
    "stats": (f"{_HERE}.stats", "Statistics per topic and queue: sizes, skew, keys, tags, growth."),
    "trace": (f"{_HERE}.trace", "Sessions of messages from a trace topic: send, deliveries, latencies."),
    "verify": (f"{_HERE}.verify.job", "Every record of stores, their queues and index; differences between replicas."),
}
"""Name, module, one line of help."""


def load_job(name: str) -> Any:
    """The module of a job, with its ``Config`` and ``run``."""
    return importlib.import_module(JOBS[name][0])
