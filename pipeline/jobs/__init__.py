"""Jobs: each module holds a ``Config`` and ``run(spark, config) -> Report``; :mod:`.catalogue` lists them."""

from __future__ import annotations

from .catalogue import JOBS
from .report import Report

__all__ = ["JOBS", "Report"]
