"""Appends from producers."""
