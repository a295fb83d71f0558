"""What users of Spark's Kafka connector write, and what does it here: told in place of "no such option"."""

from __future__ import annotations

from typing import Final

OPTIONS: Final = {
    "kafka.bootstrap.servers": "nameServer, with the nameservers' addresses",
    "bootstrap.servers": "nameServer, with the nameservers' addresses",
    "kafka.group.id": "group",
    "groupIdPrefix": "group",
    "topics": "subscribe, or topic to write to one",
    "topic": "subscribe",
    "includeHeaders": "nothing: the column properties has what Kafka's headers have",
    "maxTriggerDelay": "maxTriggerDelayMs",
    "maxRecordsPerPartition": "targetBytesPerPartition, or minPartitions",
    "kafkaConsumer.pollTimeoutMs": "fetchTimeoutMs",
    "fetchOffset.numRetries": "driverRetryTimeoutMs",
    "fetchOffset.retryIntervalMs": "driverRetryTimeoutMs",
    "kafka.isolation.level": "nothing: what is not decided is never read",
    "kafka.compression.type": "compression",
    "kafka.acks": "nothing: the brokers' flushDiskType and brokerRole say when a message is acknowledged",
    "kafka.transactional.id": "deliveryGuarantee=exactly-once",
    "kafka.security.protocol": "tlsCaFile for TLS, and credentialsFile for a user",
    "kafka.sasl.jaas.config": "credentialsFile",
    "kafka.ssl.truststore.location": "tlsCaFile",
    "kafka.ssl.keystore.location": "tlsCertFile and tlsKeyFile",
}
"""Option → what to give instead."""
SINK_COLUMNS: Final = {
    "key": "shardingKey, which keeps its rows in order in one queue; keys, if it is to be searched for",
    "value": "body",
    "headers": "properties",
    "partition": "queueId",
    "timestamp": "nothing (brokers note when they store), or deliverAt for a later time",
}
"""Column of the sink → the column here."""
SOURCE_COLUMNS: Final = {
    "key": "keys, or properties['__SHARDINGKEY']",
    "value": "body",
    "headers": "properties",
    "partition": "brokerName and queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp, or bornTimestamp",
    "timestampType": "storeTimestamp, or bornTimestamp",
}
"""Column of the source → the column here."""
