"""Topic attributes: their names in RocketMQ, and what their values mean."""
