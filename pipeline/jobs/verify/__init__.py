"""Every record of stores, their queues and index."""
