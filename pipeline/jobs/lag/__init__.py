"""How far consumer groups are behind, over time: samples of a cluster as a stream, and its rows as files of a lake."""

from __future__ import annotations

from ...requirements import require_spark

__all__: list[str] = []

require_spark()
