"""The process that Spark on one machine forks its Python workers from, with our kernels loaded once for all of them.

``spark.python.daemon.module`` names it; :func:`penstock.pipeline.session` sets that for a ``local`` master. Spark's own
daemon loads nothing before it forks, because threads do not survive a fork and some packages start some when they are
imported. NumPy with one thread and Numba start none, and loading the kernels costs each worker about a second.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from typing import Any

from pyspark import daemon

from ..columns import column_kernels, part_kernels  # noqa: F401  load the kernels of penstock.formats.record too

_serve = daemon.worker


def _worker(socket: Any, authenticated: bool) -> Any:
    """One task. A worker whose socket Java has closed, as it does to idle ones, ends without a traceback."""
    try:
        return _serve(socket, authenticated)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = _worker
    daemon.manager()
