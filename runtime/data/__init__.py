"""Connections to the data ports of brokers, both ends."""
