"""The demonstrations: a cluster with two deaths, and a stream through Spark."""
