"""Exactly-once writers: staged batches, one decision, publication."""
