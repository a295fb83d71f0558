"""A broker: one CommitLog and everything derived from it, served over gRPC. ``server.run`` is the process."""
