"""Messages with a delay level: stored in RocketMQ's schedule topic, delivered when their level's time is over."""
