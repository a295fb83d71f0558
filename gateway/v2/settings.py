"""What clients are told of their limits and of retries, in answer to the settings that they send.

Clients differ in what they understand: Python's takes a table of delays alone, Node.js' an exponential one alone, and
takes its seconds for milliseconds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from penstock.gateway.v2.wire.definition_pb2 import (
    ClientType,
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)
from penstock.proto.wire.common_pb2 import GroupConfig

from .callers import Caller
from .consume.receiving import subscription_of
from .groups import Groups
from .messages import BODY_BYTES_MAX, duration
from .names import group_of, topic_of
from .status import Refusal

ENTRIES_MAX: Final = 1024
BYTES_MAX: Final = 1024 * 1024
"""Of a client's settings: they are sent back, and wait where it reads slowly."""
BATCH: Final = 32
LONG_POLL_MS: Final = 20_000
LITE_SUBSCRIPTIONS: Final = 1200
LITE_TOPIC_LENGTH: Final = 64
_PRODUCER_ATTEMPTS: Final = 3
_DELAYS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""RocketMQ's ``CustomizedRetryPolicy``."""
_RETRY_MAX_S: Final = 7200
PROPERTIES_MAX: Final = 32
PROPERTIES_BYTES_MAX: Final = 4096
PROPERTY_LENGTH_MAX: Final = 256
_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}", re.ASCII)
_RESERVED: Final = "rocketmq."
CONSUMERS: Final = frozenset(
    {
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.PULL_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
        ClientType.LITE_SIMPLE_CONSUMER,
    }
)


async def answer_to(asked: Settings, caller: Caller, groups: Groups) -> Settings:
    """The client's settings with what the server decides.

    Raises:
        Refusal: neither a producer's nor a consumer's, of another type of client, or a bad name.
    """
    if (size := asked.ByteSize()) > BYTES_MAX:
        raise Refusal(Code.BAD_REQUEST, f"settings of {size} bytes: at most {BYTES_MAX}")
    _check_properties(asked.client_properties)
    answer = Settings()
    answer.CopyFrom(asked)
    answer.metric.CopyFrom(Metric(on=False))
    kind = asked.WhichOneof("pub_sub")
    if kind == "publishing":
        _answer_producer(answer, caller)
    elif kind == "subscription":
        await _answer_consumer(answer, caller, groups)
    else:
        raise Refusal(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
    return answer


def _check_properties(properties: Mapping[str, str]) -> None:
    """What programs say of themselves. Raises Refusal: INVALID_CLIENT_PROPERTIES."""
    problem = ""
    if len(properties) > PROPERTIES_MAX:
        problem = f"{len(properties)} of them: at most {PROPERTIES_MAX}"
    elif sum(len(name.encode()) + len(value.encode()) for name, value in properties.items()) > PROPERTIES_BYTES_MAX:
        problem = f"together at most {PROPERTIES_BYTES_MAX} bytes"
    for name, value in () if problem else properties.items():
        if not _PROPERTY_NAME.fullmatch(name) or name.startswith(_RESERVED):
            problem = f"{name[:64]!r}: 1..64 letters, digits and _ . -, a letter first, and not {_RESERVED}"
        elif len(value) > PROPERTY_LENGTH_MAX:
            problem = f"{name!r} has {len(value)} characters: at most {PROPERTY_LENGTH_MAX}"
    if problem:
        raise Refusal(Code.INVALID_CLIENT_PROPERTIES, f"client properties: {problem}")


def topics_of(settings: Settings, namespace: str) -> list[str]:
    """The topics that a producer publishes to, by the cluster's names."""
    return [topic_of(topic, namespace) for topic in settings.publishing.topics]


def _answer_producer(answer: Settings, caller: Caller) -> None:
    if answer.HasField("client_type") and answer.client_type != ClientType.PRODUCER:
        raise Refusal(Code.BAD_REQUEST, f"publishing settings of client type {answer.client_type}: must be PRODUCER")
    if len(answer.publishing.topics) > ENTRIES_MAX:
        raise Refusal(Code.BAD_REQUEST, f"{len(answer.publishing.topics)} topics: at most {ENTRIES_MAX}")
    topics_of(answer, caller.namespace)
    answer.publishing.max_body_size = BODY_BYTES_MAX
    answer.publishing.validate_message_type = True
    backoff = ExponentialBackoff(initial=duration(10), max=duration(1000), multiplier=2.0)
    answer.backoff_policy.CopyFrom(RetryPolicy(max_attempts=_PRODUCER_ATTEMPTS, exponential_backoff=backoff))


async def _answer_consumer(answer: Settings, caller: Caller, groups: Groups) -> None:
    if answer.HasField("client_type") and answer.client_type not in CONSUMERS:
        raise Refusal(Code.BAD_REQUEST, f"subscription settings of client type {answer.client_type}: no consumer")
    subscription = answer.subscription
    group = group_of(subscription.group, caller.namespace)
    if len(subscription.subscriptions) > ENTRIES_MAX:
        raise Refusal(Code.BAD_REQUEST, f"{len(subscription.subscriptions)} subscriptions: at most {ENTRIES_MAX}")
    for entry in subscription.subscriptions:
        subscription_of(topic_of(entry.topic, caller.namespace), entry.expression)
        await asyncio.sleep(0)  # a long condition takes some ten milliseconds
    known = await groups.config(group)
    subscription.fifo = known.orderly
    subscription.receive_batch_size = BATCH
    subscription.long_polling_timeout.CopyFrom(duration(LONG_POLL_MS))
    subscription.lite_subscription_quota = LITE_SUBSCRIPTIONS
    subscription.max_lite_topic_size = LITE_TOPIC_LENGTH
    answer.backoff_policy.CopyFrom(_policy(known, is_node_js=caller.is_node_js))


def _policy(known: GroupConfig, *, is_node_js: bool) -> RetryPolicy:
    attempts = max(known.retry_max_times, 0) + 1
    policy, unit = known.retry_policy, 1000 if is_node_js else 1
    if is_node_js or policy.initial_ms:
        initial_ms, max_ms, multiplier = 1000, _RETRY_MAX_S * 1000, 2
        if policy.initial_ms:
            initial_ms, max_ms = policy.initial_ms, policy.max_ms or max_ms
            multiplier = policy.multiplier or multiplier
        backoff = ExponentialBackoff(
            initial=duration(initial_ms * unit), max=duration(max_ms * unit), multiplier=float(multiplier)
        )
        return RetryPolicy(max_attempts=attempts, exponential_backoff=backoff)
    delays_ms = policy.delays_ms or [second * 1000 for second in _DELAYS_S]
    return RetryPolicy(
        max_attempts=attempts, customized_backoff=CustomizedBackoff(next=[duration(each) for each in delays_ms])
    )
