"""The log's bytes: files, appends, flushing, committing."""
