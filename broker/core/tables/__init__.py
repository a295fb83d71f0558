"""Tables derived from the log, and their snapshots."""
