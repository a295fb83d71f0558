"""Stored logs, read in windows."""
