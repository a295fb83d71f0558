"""Consume queues of a store, made from its log."""
