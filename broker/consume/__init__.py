"""Fetches, consumer groups and their offsets."""
