"""The page of limits: what clients may make a broker hold or do, and the error that says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from penstock.broker.admin import administration, topics
from penstock.broker.config import RECORD_OVERHEAD_BYTES, BrokerConfig
from penstock.broker.consume import answer, consumer_sessions, fetch, fetch_load, groups, offsets, session
from penstock.broker.core import data_calls, intake, wire
from penstock.broker.core.tables import producers
from penstock.broker.features.exactly_once import staging, staging_table, writers
from penstock.broker.features.pop import request
from penstock.broker.features.replies import pushing
from penstock.broker.features.transactions import producers as sessions
from penstock.broker.limits import Limits
from penstock.broker.produce import send
from penstock.formats import sql92
from penstock.formats.record import replies
from penstock.nameserver import watches
from penstock.proto import data_frames, errors, frames, names
from penstock.proto.requests import FIELDS_AT_ONCE_MAX
from penstock.runtime.channel import CALLS_PER_CONNECTION_MAX, FIELDS_MAX
from penstock.runtime.conf import keyed_fields
from penstock.runtime.data import port as data_port
from penstock.runtime.data import sending as data_sending

from .markdown import NOTE, code, plain, size, table

Error = type[errors.PenstockError]

SETTABLE: Mapping[str, Error | str] = {
    "maxProducerLanes": errors.LaneForgotten,
    "maxLanesPerProducer": errors.LimitReached,
    "maxTopicNum": errors.LimitReached,
    "maxSubscriptionGroupNum": errors.LimitReached,
    "maxAttributeBytes": errors.LimitReached,
    "maxSubscriptionsPerClient": errors.LimitReached,
    "maxClientsPerGroup": errors.LimitReached,
    "maxConsumerSessions": errors.LimitReached,
    "maxWaitingFetches": errors.FlowControl,
    "maxFetchesPerConnection": errors.FlowControl,
    "maxFetchBytesHeld": errors.FlowControl,
    "maxConcurrentCalls": "gRPC's RESOURCE_EXHAUSTED: `BrokerUnavailable` at the client",
    "maxMessageSize": errors.MessageTooLarge,
    "maxLmqConsumeQueueNum": errors.Forbidden,
    "timerMessagesMax": errors.FlowControl,
    "timerMaxDelaySec": errors.InvalidArgument,
    "popInflightMessageThreshold": errors.FlowControl,
    "popInflightMessageMax": errors.FlowControl,
}
"""What has a key, and the error of whoever meets it."""

FIXED: tuple[tuple[str, int, Error | str], ...] = (
    ("Queues of a topic, and queues that one request may name", wire.QUEUES_MAX, errors.InvalidArgument),
    ("Topics that one fetch or commit may name", wire.QUEUES_MAX, errors.InvalidArgument),
    ("Queues that one consumer claims at a broker", session.CLAIMS_MAX, errors.FlowControl),
    ("Queues that all consumers claim at a broker, counted for each", session.CLAIMS_OF_ALL_MAX, errors.FlowControl),
    ("Queues that all fetches under way want", fetch_load.QUEUES_UNDER_WAY_MAX, errors.FlowControl),
    ("Bytes of a request without records", wire.REQUEST_BYTES_MAX, errors.MessageTooLarge),
    ("Bytes of the header in front of records", frames.HEADER_BYTES_MAX, errors.MessageTooLarge),
    ("Fields of a request, those of messages inside it included", FIELDS_MAX, errors.MessageTooLarge),
    ("The same at the data port", FIELDS_AT_ONCE_MAX, errors.MessageTooLarge),
    ("Records of a batch", send.COUNT_MAX, errors.InvalidArgument),
    ("Bytes of a batch above maxMessageSize", RECORD_OVERHEAD_BYTES, errors.MessageTooLarge),
    ("Batches of one stream that wait for their answers", data_calls.UNANSWERED_MAX, "nothing more is read"),
    (
        "Ends of transactions, or acknowledgements, of one connection that are under way",
        data_calls.UNDER_WAY_MAX,
        "nothing more is read",
    ),
    ("Connections to a data port", data_port.CONNECTIONS_MAX, errors.LimitReached),
    ("Bytes of a frame of the data port", data_frames.FRAME_BYTES_MAX, errors.InvalidArgument),
    ("Bytes of the greeting to a data port", data_frames.HELLO_BYTES_MAX, errors.InvalidArgument),
    (
        "Bytes of answers that the client of a data port leaves untaken",
        data_sending.UNSENT_BYTES_MAX,
        "nothing more is read",
    ),
    ("Seconds in which an answer of a data port is to be taken", int(data_sending.TAKEN_S), "the connection ends"),
    ("Bytes of the reply to a fetch", answer.REPLY_BYTES_MAX, "the rest comes with the next"),
    ("Milliseconds that a fetch waits", fetch.WAIT_MS_MAX, "an empty reply"),
    ("Characters of a filter", sql92.EXPRESSION_LENGTH_MAX, errors.InvalidArgument),
    ("Characters of a topic's name", names.TOPIC_LENGTH_MAX, errors.InvalidName),
    ("Characters of a group's name", names.GROUP_LENGTH_MAX, errors.InvalidName),
    ("Characters of a client id", consumer_sessions.CLIENT_ID_LENGTH_MAX, errors.InvalidArgument),
    ("Characters of all of a consumer's filters", consumer_sessions.EXPRESSIONS_LENGTH_MAX, errors.LimitReached),
    ("Events that a consumer leaves unread", session.OUTGOING_MAX, errors.FlowControl),
    ("Topics on which two consumers differ that are told", groups.MISMATCHES_MAX, "the others are not told"),
    ("Offsets that a slave keeps for its master", offsets.PENDING_MAX, errors.FlowControl),
    ("Bytes of names and attributes of all topics", administration.REGISTRATION_BYTES_MAX, errors.LimitReached),
    ("Messages that a query by key answers", administration.QUERY_COUNT_MAX, "the newest ones"),
    ("Receipts that are remembered of a lane", producers.RECEIPTS_MAX, errors.InvalidArgument),
    ("Queue ids and offsets in the receipts of all lanes", producers.NUMBERS_MAX, errors.LaneForgotten),
    ("Days that an idle lane is remembered", producers.IDLE_MS_MAX // 86_400_000, "it counts as new"),
    ("Producer ids that are the broker's own", len(intake.RESERVED_PRODUCERS), errors.Forbidden),
    ("Producer groups of one client", names.PRODUCER_GROUPS_MAX, errors.InvalidArgument),
    ("Producer groups of all clients of a broker, counted for each", sessions.MEMBERS_MAX, errors.LimitReached),
    ("Keys (tasks) of an exactly-once batch", writers.KEYS_MAX, errors.InvalidArgument),
    ("Broker groups of one key", writers.SHARDS_MAX, errors.InvalidArgument),
    ("Chunks of one key at one shard", writers.CHUNK_MAX, errors.InvalidArgument),
    ("Topics of a writer", writers.TOPICS_MAX, errors.InvalidArgument),
    ("Characters of a writer's, run's, key's or archive's name", wire.NAME_LENGTH_MAX, errors.InvalidArgument),
    ("Milliseconds that staged data is kept undecided", staging.KEEP_MS_MAX, errors.InvalidArgument),
    ("Days that an idle writer is remembered", staging_table.REMEMBERED_MS // 86_400_000, "it counts as new"),
    ("Bytes of a reply's correlation id", replies.CORRELATION_BYTES_MAX, errors.InvalidArgument),
    ("Bytes of replies that a client leaves unread", data_sending.UNSENT_BYTES_MAX, "the rest comes when it reads"),
    ("Replies looked through for a client that was away", pushing.LOOK_BACK_MAX, "earlier ones are not sent"),
    ("Topics of one receive (POP)", request.SUBSCRIPTIONS_MAX, errors.InvalidArgument),
    ("Messages of one receive (POP)", request.MESSAGES_MAX, errors.InvalidArgument),
    ("Milliseconds that a message is invisible (POP)", request.INVISIBLE_MS_MAX, errors.InvalidArgument),
    ("Messages of one acknowledgement (POP)", request.ACKNOWLEDGED_MAX, errors.InvalidArgument),
    ("Watches of routes at a nameserver", watches.WATCHERS_MAX, errors.FlowControl),
    ("Topics of one watch", watches.TOPICS_PER_WATCHER_MAX, errors.FlowControl),
    ("Topics of all watches at a nameserver, counted for each", watches.TOPICS_WATCHED_MAX, errors.FlowControl),
    ("Calls of one connection", CALLS_PER_CONNECTION_MAX, "more wait at the client"),
)
"""What, how much, and what happens beyond."""

assert topics.QUEUES_MAX == wire.QUEUES_MAX

TEXT = """Below each limit a request is served; beyond it there is an error by name, and nothing was changed.
`LimitReached` is refused for good, `FlowControl` may be tried again. Lists are measured before they are read, and long
ones are worked through in pieces, so that no request keeps others waiting.

## In broker.conf

"""
BEHIND = """
## What is not limited

- There are no compacted topics (`cleanup.policy=COMPACTION`): a topic keeps all its messages for as long as its files
  live, or `retention.ms` says; see [upgrade](../operate/upgrade.md#from-rocketmq).
- **Users have no rights** (see [security](../operate/security.md)): a limit is for all clients together, or for one
  connection or name that a client chose itself.
- A writer that was idle for so long as the table says is forgotten, with its last batch number: a query that starts
  again after that from an old checkpoint writes its last batch once more. The same holds for lanes of idempotent
  writers.
- The decision of an exactly-once batch is one record of at most `maxMessageSize` bytes, some 60 for each task and
  shard. A batch of more tasks is refused at its decision, when all is staged: write fewer partitions.
- Two queries that use one writer name, by copying an option, take over from each other at each start; the one that is
  fenced ends with `StaleProducer`, which says so.
- Names that users choose for producers (`producer id`) are not theirs alone: who knows the id of another producer can
  fence it by a newer epoch. As many producers as `maxProducerLanes` are remembered as fenced.
- Nobody knows whether a message that a consumer gave back comes again where the broker's answer was lost and, before
  the consumer asked again, more than `maxProducerLanes` other lanes were used. `send_back` raises `LaneForgotten`; a
  `PushConsumer` tries the message itself, and gives it back anew if that fails: then it may come again twice.
- Connections: as many as the process may open files.
- `/metrics` has a port of its own without users, TLS or limits: let only Prometheus reach it.
"""


def page() -> str:
    fields = dict(keyed_fields(BrokerConfig))
    missing = {each.metadata["key"] for each in dataclasses.fields(Limits)} - SETTABLE.keys()
    if missing:
        raise ValueError(
            f"limits without an error: {sorted(missing)}: say in SETTABLE which one whoever meets them gets"
        )
    settable = [
        (code(name), size(fields[name].default), plain(fields[name].metadata["doc"]), _told(error))
        for name, error in SETTABLE.items()
    ]
    fixed = [(plain(what), size(most) if "Bytes" in what else str(most), _told(error)) for what, most, error in FIXED]
    return (
        f"{NOTE}\n# Limits\n\n{TEXT}"
        + table(("Key", "Default", "Limits", "Beyond"), settable)
        + "\n## Fixed\n\n"
        + table(("What", "At most", "Beyond"), fixed)
        + BEHIND
    )


def _told(error: Error | str) -> str:
    return plain(error) if isinstance(error, str) else code(error.__name__)
