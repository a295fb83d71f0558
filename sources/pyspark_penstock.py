"""Where Spark looks for ``format("penstock")``."""

from penstock.pipeline.topics.source import TopicDataSource as DefaultSource

__all__ = ["DefaultSource"]
