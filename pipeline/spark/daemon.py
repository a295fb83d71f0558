"""The process that Spark on one machine forks its Python workers from, with what they need loaded once for all of them.

``spark.python.daemon.module`` names it; :func:`penstock.pipeline.session` sets that for a ``local`` master. Spark's own
daemon loads nothing before it forks, because threads do not survive a fork and some packages start some when they are
imported (pyarrow does). NumPy with one thread and Numba start none, and loading the kernels costs each worker about a
second. What plans is forked from Spark's own daemon, whatever the setting says.
"""

from __future__ import annotations

import importlib
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from typing import Any

from pyspark import daemon

LOAD_NOTHING = "PENSTOCK_WORKERS_LOAD_NOTHING"
"""A variable of the environment, set in a short session: its tasks read no stores."""
_KERNELS = ("column_kernels", "part_kernels")
"""Modules of kernels; they load those of penstock.formats.record, too."""

_serve = daemon.worker


def load() -> None:
    """Import what tasks will need."""
    if LOAD_NOTHING not in os.environ:
        for name in _KERNELS:
            importlib.import_module(f"penstock.pipeline.columns.{name}")


def _worker(socket: Any, authenticated: bool) -> Any:
    """One task. A worker whose socket Java has closed, as it does to idle ones, ends without a traceback."""
    try:
        return _serve(socket, authenticated)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    load()
    daemon.worker = _worker
    daemon.manager()
