"""Judges the histories of drills and load tests, of any size, against the invariants of delivery.

One pass cuts the history's files into pieces, each of one queue or of a stretch of one stream; Spark brings the pieces
of each together, and one task judges whole queues and whole messages in NumPy. See :mod:`.job` for the invariants.
"""

from .job import Config, run

__all__ = ["Config", "run"]
