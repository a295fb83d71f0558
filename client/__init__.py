"""Clients of a Penstock cluster: producers, consumers, administration.

The clients themselves are loaded when first used, so that importing this package stays cheap: kernels and compilers are
not touched before the first producer or consumer is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.proto.errors import (
    BrokerUnavailable,
    BufferFull,
    ClientClosed,
    CommitRefused,
    ConfigError,
    CorruptBatch,
    DamagedRecord,
    DeliveryFailed,
    Forbidden,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    InvalidReceipt,
    MessageNotFound,
    MessageTooLarge,
    NameserverUnavailable,
    NotEnoughReplicas,
    OffsetOutOfRange,
    OutcomeUnknown,
    PenstockError,
    ReceiptExpired,
    Refused,
    Retryable,
    RouteNotFound,
    TopicExists,
    TopicNotFound,
    TransactionEnded,
    Unauthorized,
)
from penstock.runtime.security.credentials import Credentials, Tls

from .administer.admin_results import (
    BrokerInfo,
    ClusterInfo,
    GroupInfo,
    GroupLag,
    GroupMember,
    MessageTrace,
    MessageTrack,
    NameserverInfo,
    ProducerInfo,
    QueueLag,
    QueuePosition,
    QueueStats,
    ReplicaInfo,
    RetryPolicy,
    StoredMessage,
    TopicInfo,
    TopicShard,
    TopicStats,
    TracedAttempt,
    TracedConsumption,
    TracedEnd,
    TracedRecall,
    TracedSend,
    TrackType,
)
from .cluster.calls import Listing
from .cluster.subscription import Sql
from .consume.consumer_config import ConsumerConfig
from .consume.message_batch import MessageBatch
from .message import Delivery, FailedDelivery, Message, MessageQueue, MessageView, SendReceipt, SendStatus
from .produce.config import ProducerConfig
from .statistics import ConsumerStatistics, Latency, ProducerStatistics

if TYPE_CHECKING:
    from .admin import Admin
    from .consume.pop.receiving import ReceivedMessage
    from .producer import Producer
    from .pull_consumer import PullConsumer
    from .push_consumer import ConsumeResult, PushConsumer
    from .simple_consumer import SimpleConsumer
    from .transact.transaction import Transaction, TransactionState
    from .transaction_producer import TransactionProducer

_LATER = {
    "Admin": ".admin",
    "ConsumeResult": ".push_consumer",
    "Producer": ".producer",
    "PullConsumer": ".pull_consumer",
    "PushConsumer": ".push_consumer",
    "ReceivedMessage": ".consume.pop.receiving",
    "SimpleConsumer": ".simple_consumer",
    "Transaction": ".transact.transaction",
    "TransactionProducer": ".transaction_producer",
    "TransactionState": ".transact.transaction",
}
"""The modules that are loaded when first used."""

__all__ = [
    "Admin",
    "BrokerInfo",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "ClusterInfo",
    "CommitRefused",
    "ConfigError",
    "ConsumeResult",
    "ConsumerConfig",
    "ConsumerStatistics",
    "CorruptBatch",
    "Credentials",
    "DamagedRecord",
    "Delivery",
    "DeliveryFailed",
    "FailedDelivery",
    "Forbidden",
    "GroupInfo",
    "GroupLag",
    "GroupMember",
    "GroupNotFound",
    "InvalidArgument",
    "InvalidName",
    "InvalidReceipt",
    "Latency",
    "Listing",
    "Message",
    "MessageBatch",
    "MessageNotFound",
    "MessageQueue",
    "MessageTooLarge",
    "MessageTrace",
    "MessageTrack",
    "MessageView",
    "NameserverInfo",
    "NameserverUnavailable",
    "NotEnoughReplicas",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PenstockError",
    "Producer",
    "ProducerConfig",
    "ProducerInfo",
    "ProducerStatistics",
    "PullConsumer",
    "PushConsumer",
    "QueueLag",
    "QueuePosition",
    "QueueStats",
    "ReceiptExpired",
    "ReceivedMessage",
    "Refused",
    "ReplicaInfo",
    "RetryPolicy",
    "Retryable",
    "RouteNotFound",
    "SendReceipt",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "StoredMessage",
    "Tls",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicShard",
    "TopicStats",
    "TracedAttempt",
    "TracedConsumption",
    "TracedEnd",
    "TracedRecall",
    "TracedSend",
    "TrackType",
    "Transaction",
    "TransactionEnded",
    "TransactionProducer",
    "TransactionState",
    "Unauthorized",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATER[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
