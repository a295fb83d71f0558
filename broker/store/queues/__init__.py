"""Consume queues and light queues."""
