"""What every service of a broker stands on: tables, the way into the log, dispatch."""
