"""The process that Spark on one machine forks its Python workers from, with what they need loaded once for all of them.

``spark.python.daemon.module`` names it; :func:`penstock.pipeline.session` sets that for a ``local`` master. Spark's own
daemon loads nothing before it forks, because threads do not survive a fork and some packages start some when they are
imported (pyarrow does). NumPy with one thread and Numba start none, and loading the kernels costs each worker about a
second. Spark has one such process for tasks and one for each thing that it plans, named by the first argument; those
that load no kernels in their work load none here.
"""

from __future__ import annotations

import importlib
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from typing import Any

from pyspark import daemon

WITH_KERNELS = ("pyspark.worker", "pyspark.sql.worker.create_data_source")
"""Tasks; and what lists a store, whose last log file is scanned."""
LOAD_NOTHING = "PENSTOCK_WORKERS_LOAD_NOTHING"
"""A variable of the environment."""
_KERNELS = ("column_kernels", "part_kernels")
"""They load those of penstock.formats.record, too."""

_serve = daemon.worker


def load_for(worker: str) -> None:
    """Import what the workers of this module (one of Spark's) will need; in a short session they read no stores."""
    if worker in WITH_KERNELS and LOAD_NOTHING not in os.environ:
        for name in _KERNELS:
            importlib.import_module(f"penstock.pipeline.columns.{name}")


def _worker(socket: Any, authenticated: bool) -> Any:
    """One task. A worker whose socket Java has closed, as it does to idle ones, ends without a traceback."""
    try:
        return _serve(socket, authenticated)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    load_for(sys.argv[1] if len(sys.argv) > 1 else WITH_KERNELS[0])
    daemon.worker = _worker
    daemon.manager()
