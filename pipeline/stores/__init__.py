"""``format("penstock_store")``: data directories of Penstock and RocketMQ as tables, read without a broker."""

from __future__ import annotations

__all__: list[str] = []
