"""Consumers that get each message for a time: what a SimpleConsumer does."""
