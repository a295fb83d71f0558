"""Judges the histories of drills and load tests against the invariants of delivery; they may outgrow one process.

One pass cuts the history's files into pieces, each of one queue or of a stretch of one stream; Spark brings the pieces
of each together, and one task judges whole queues and whole messages in NumPy. See :mod:`.job` for the invariants.
"""

from .job import Config, check, run

__all__ = ["Config", "check", "run"]
