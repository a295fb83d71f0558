"""Rows into topics, with the guarantee that is asked for."""
