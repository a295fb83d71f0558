"""Consume queues, compared with the log and written anew."""
