"""Jobs: each module holds a ``Config`` and ``run(spark, config) -> Report``; :mod:`..catalogue` lists them.

``check(config)``, which some have, returns if the options are right as far as can be told without Spark, and else
raises ConfigError; ``run`` begins with it. A job that says ``NEEDS_SPARK = False`` takes None for its session.

Raises:
    ConfigError: (on import) a package of the extra ``penstock-mq[spark]`` is missing. So do topics, stores and lag.
"""

from __future__ import annotations

from ..requirements import require_spark

require_spark()
