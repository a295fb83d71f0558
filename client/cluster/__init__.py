"""A client's core: where topics and masters are, calls at them, and when a call is made again.

What programs use that speak to brokers themselves: Spark's sources and sinks, gateways, tools. Everything else of
:mod:`penstock.client` but its public names is its own.
"""

from __future__ import annotations

from .asking import asked
from .calls import Calls, Listing, unheard
from .connections import BROKER, Connections, Service, fetched, parse_addresses, rpc_error
from .directory import Directory
from .hosts import local_host, store_host_of
from .queues import (
    WriteQueues,
    all_queues,
    offsets_by_broker,
    offsets_in,
    queues_in,
    readable_queues,
    topic_offsets,
    topic_queues,
)
from .retry import again, back_off_s, check_timeout, may_pass, pause_before_retry_s, require_timeout, reworded
from .routes import master_of
from .subscription import Expression, Sql, Subscription, parse_subscription

__all__ = [
    "BROKER",
    "Calls",
    "Connections",
    "Directory",
    "Expression",
    "Listing",
    "Service",
    "Sql",
    "Subscription",
    "WriteQueues",
    "again",
    "all_queues",
    "asked",
    "back_off_s",
    "check_timeout",
    "fetched",
    "local_host",
    "master_of",
    "may_pass",
    "offsets_by_broker",
    "offsets_in",
    "parse_addresses",
    "parse_subscription",
    "pause_before_retry_s",
    "queues_in",
    "readable_queues",
    "require_timeout",
    "reworded",
    "rpc_error",
    "store_host_of",
    "topic_offsets",
    "topic_queues",
    "unheard",
]
