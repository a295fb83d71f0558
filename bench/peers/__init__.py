"""Cases that run beside another system: Kafka and RocketMQ, fetched from their registries, in turn with ours."""
