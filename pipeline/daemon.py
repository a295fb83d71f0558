"""The process that Spark on one machine forks its Python workers from, with our kernels loaded once for all of them.

``spark.python.daemon.module`` names it; :func:`penstock.pipeline.session` sets that for a ``local`` master. Spark's own
daemon loads nothing before it forks, because threads do not survive a fork and some packages start some when they are
imported. NumPy with one thread and Numba start none, and loading the kernels costs each worker about a second.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pyspark.daemon import manager

from . import column_kernels, part_kernels  # noqa: F401  load the kernels of penstock.proto.record too

if __name__ == "__main__":
    manager()
