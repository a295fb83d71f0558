"""Names: what topics and groups may be called, and the names that Penstock keeps for itself.

Rules as RocketMQ's ``TopicValidator``: ``% | a-z A-Z 0-9 _ -``, topics up to 127 characters (retry and
dead-letter topics 255), groups up to 120. A name is therefore always a safe single path component.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from .errors import InvalidName

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LIGHT_PREFIX = "%LMQ%"
"""Light queues: one queue each, without a topic of their own."""
SYSTEM_PREFIX = "rmq_sys_"
STATE_TOPIC = "rmq_sys_PENSTOCK_STATE"
"""Internal topic, one queue: every change of topics, groups and committed offsets is a record here."""
LOST_TOPIC = "rmq_sys_PENSTOCK_LOST"
"""Topic of the rolled-back records that a rebuilt store has in place of damaged bytes; in short ones, a part of it."""

STAGE_TOPIC = "rmq_sys_PENSTOCK_STAGE"
"""Internal topic, one queue: what exactly-once writers have staged, one chunk per record, invisible until published."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""RocketMQ's, a queue per delay level: messages that are delivered to their own topic a fixed time later."""

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""RocketMQ's: halves of transactions, until they are decided."""

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""RocketMQ's: which halves are decided."""

PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""RocketMQ's: halves that were asked about too often."""

TRANSACTIONS_GROUP = "CID_RMQ_SYS_TRANS"
"""RocketMQ's: the group whose committed offsets say how far halves and ops are done with."""

DECISION_PROPERTY = "__TXEND"
"""Property of an op: how its halves are decided."""

POP_TOPIC = "rmq_sys_PENSTOCK_POP"
"""Internal topic, one queue: what POP consumers were given, and what became of it (broker/features/pop/ops.py)."""

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Begins the name of RocketMQ's topic for POP: check points, and what was acknowledged."""

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Internal topic, one queue, RocketMQ's: messages that are delivered to their own topic later."""

REPLY_SUFFIX = "_REPLY_TOPIC"
"""Ends the name of RocketMQ's topic of replies, which begins with the cluster's."""

PRODUCER_PROPERTY = "__PSEQ"
"""First property of a batch's first record: see :mod:`.record.producer_mark`."""

TOPIC_LENGTH_MAX = 127
DERIVED_TOPIC_LENGTH_MAX = 255
GROUP_LENGTH_MAX = 120
PRODUCER_GROUPS_MAX = 10_000
"""Producer groups of one client."""

PERM_READ = 4
PERM_WRITE = 2
PERM_READ_WRITE = PERM_READ | PERM_WRITE

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def _check(kind: str, name: str, longest: int) -> str:
    if not isinstance(name, str):
        raise InvalidName(f"{kind} name must be text, not {name!r:.60}")
    shown = name if len(name) <= 64 else name[:61] + "..."
    if not name or not name.strip():
        raise InvalidName(f"{kind} name is blank: give it 1..{longest} characters")
    if len(name) > longest:
        raise InvalidName(f"{kind} {shown!r} has {len(name)} characters: at most {longest} are allowed")
    if not _ALLOWED.fullmatch(name):
        raise InvalidName(f"{kind} {shown!r}: only letters, digits and the signs % | _ - are allowed")
    return name


def check_topic(topic: str) -> str:
    """``topic`` itself. Raises :class:`InvalidName` unless it is a legal topic name."""
    derived = isinstance(topic, str) and topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _check("topic", topic, DERIVED_TOPIC_LENGTH_MAX if derived else TOPIC_LENGTH_MAX)


def check_group(group: str) -> str:
    """``group`` itself. Raises :class:`InvalidName` unless it is a legal group name."""
    return _check("group", group, GROUP_LENGTH_MAX)


def check_groups(groups: Collection[str]) -> None:
    """Check many at once. Raises :class:`InvalidName` for the first that is no legal group name."""
    are_legal = all(0 < len(group) <= GROUP_LENGTH_MAX for group in groups) and _ALLOWED.fullmatch("".join(groups))
    if not are_legal:
        for group in groups:
            check_group(group)


def check_broker_name(name: str) -> str:
    """``name`` itself. Raises :class:`InvalidName` unless it is a legal broker or cluster name."""
    return _check("broker", name, TOPIC_LENGTH_MAX)


def reply_topic(cluster: str) -> str:
    """The topic that holds the replies of a cluster, one queue at each broker group."""
    return cluster + REPLY_SUFFIX


def is_filled_by_brokers(topic: str, cluster: str) -> bool:
    """True of what failed and of replies: clients read such a topic and do not write it, whatever its perm is.

    RocketMQ's clients need the perm to write, so a store that goes back to RocketMQ has to give it.
    """
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or topic == reply_topic(cluster)


def is_system_topic(topic: str) -> bool:
    """True if clients may not create, delete or write ``topic``."""
    return topic.startswith(SYSTEM_PREFIX) or topic in _SYSTEM_TOPICS


_SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        PARKED_TOPIC,
        "CHECKPOINT_TOPIC",
    }
)
