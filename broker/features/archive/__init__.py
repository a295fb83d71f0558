"""Positions of archives, which retention waits for."""
