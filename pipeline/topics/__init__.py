"""``format("penstock")``: topics of a running cluster as Spark's tables and streams.

A row is a message, see :mod:`penstock.pipeline.columns.schema`. Reading plans from the brokers' confirm offsets;
writing promises what its option ``deliveryGuarantee`` says. Nothing of that is imported here,
because executors and planners each need another part.
"""

from __future__ import annotations

from ..requirements import require_spark

require_spark()
