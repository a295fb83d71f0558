"""The master's side of replication: streams, progress, sync-state set."""
