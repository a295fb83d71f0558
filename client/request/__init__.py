"""Requests: messages whose sender waits for another message, their reply."""
