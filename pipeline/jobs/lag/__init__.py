"""How far consumer groups are behind, over time: samples of a cluster, and their rows as files of a lake."""

from __future__ import annotations

from ...requirements import require_spark

__all__: list[str] = []

require_spark()
