"""RocketMQ 5's client protocol, ``apache.rocketmq.v2`` over gRPC: one file for each family of calls."""
