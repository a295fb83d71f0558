"""``format("penstock_store")``: data directories of Penstock and RocketMQ as tables, read without a broker."""

from __future__ import annotations

from ..requirements import require_spark

require_spark()
