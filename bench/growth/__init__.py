"""How cost grows: the same work on ever more messages, queues, clients, shards, replicas and brokers."""
