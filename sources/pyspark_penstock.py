"""Where Spark looks for ``format("penstock")``."""

from penstock.pipeline.topics.read.source import TopicDataSource as DefaultSource

__all__ = ["DefaultSource"]
