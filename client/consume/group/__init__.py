"""A consumer among the consumers of its group: sessions, claims, rebalance."""
