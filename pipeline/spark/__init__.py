"""Sessions, workers and registration: what Spark needs of us."""
