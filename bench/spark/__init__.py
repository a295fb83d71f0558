"""``make bench-spark``: the speed of the store source and of the jobs, on stores that are generated for it."""

from __future__ import annotations

__all__: list[str] = []
