"""Jobs: each module holds a ``Config`` and ``run(spark, config) -> Report``; :mod:`..catalogue` lists them.

Raises:
    ConfigError: (on import) a package of the extra ``penstock-mq[spark]`` is missing. So do topics, stores and lag.
"""

from __future__ import annotations

from ..catalogue import JOBS
from ..requirements import require_spark
from .framework.report import Report

__all__ = ["JOBS", "Report"]

require_spark()
