"""Where Spark looks for ``format("penstock_store")``."""

from penstock.pipeline.stores.source import StoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
