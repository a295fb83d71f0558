"""A broker: one CommitLog and everything derived from it, served over gRPC. ``process.run`` is the process."""
