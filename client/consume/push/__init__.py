"""Listeners: the threads that call them, and what becomes of what they refuse."""
