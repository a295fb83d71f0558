"""Sealed log files, or topics, into a lake."""
