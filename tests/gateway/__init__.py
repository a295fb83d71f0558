"""The gateway for RocketMQ 5's clients, in front of a real cluster."""
