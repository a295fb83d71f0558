"""Ports for other clients than Penstock's own: each translates a protocol into calls at brokers, and owns nothing."""
