"""What RocketMQ's brokers write under ``config/``, and what that says of messages which only they would deliver.

RocketMQ keeps messages on their way to a consumer in topics of its own. Those with a delay level or a time, and halves
of transactions, go on here. So do those that a group gets again, in ``%RETRY%`` and the group, which its members read.
Of others ``consumerOffset.json`` says what is done:

| Topic | Holds | By which group |
|---|---|---|
| ``rmq_sys_REVIVE_LOG_…`` | check points and answers of POP | ``CID_RMQ_SYS_REVIVE_GROUP`` |
| ``%RETRY%…_TOPIC`` | messages that a group gets again by POP | the group |

The file is written every some seconds, so after a kill more seems to wait than does.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.proto.names import RETRY_PREFIX, REVIVE_PREFIX

log = logging.getLogger(__name__)

_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(-?\d+)(?=\s*:)')  # strings are skipped whole
_GROUPS = {REVIVE_PREFIX: "CID_RMQ_SYS_REVIVE_GROUP"}
_WAITING = {
    REVIVE_PREFIX: "what was received by POP and not acknowledged is not delivered again",
    RETRY_PREFIX: "messages that are due again go only to who subscribes to these topics",
}


class Leftover(NamedTuple):
    """What waits in the topics of one kind: how many messages, in which topics."""

    topics: tuple[str, ...]
    messages: int
    text: str


def parse_rocketmq_json(text: str) -> dict[str, Any]:
    """The object in ``text``, which may have unquoted integer keys as fastjson writes them.

    Raises:
        ValueError: it is not one.
    """
    try:
        document = json.loads(text)
    except ValueError:
        document = json.loads(_BARE_KEY.sub(lambda found: found[1] or f'"{found[2]}"', text))
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} instead of an object")
    return document


def leftovers(ranges: Mapping[tuple[str, int], tuple[int, int]], config: Path) -> list[Leftover]:
    """What a store of RocketMQ holds that nobody else delivers.

    ``ranges``: [minimum, maximum) of each topic and queue; ``config``: the store's directory of that name.
    """
    committed: dict[tuple[str, int], int] = {}
    for key, queues in read_table(config / "consumerOffset.json", "offsetTable").items():
        topic, _, group = key.rpartition("@")
        if group == _GROUPS.get(_kind(topic), group):
            for queue_id, offset in queues.items():
                committed[topic, int(queue_id)] = max(offset, committed.get((topic, int(queue_id)), 0))
    read = {RETRY_PREFIX + group for group in read_table(config / "subscriptionGroup.json", "subscriptionGroupTable")}
    waiting: dict[str, dict[str, int]] = {kind: {} for kind in _WAITING}
    for (topic, queue_id), (low, high) in sorted(ranges.items()):
        kind = _kind(topic)
        done = committed.get((topic, queue_id), 0)
        if kind in waiting and topic not in read and high > max(low, done):
            waiting[kind][topic] = waiting[kind].get(topic, 0) + high - max(low, done)
    return [Leftover(tuple(own), sum(own.values()), _WAITING[kind]) for kind, own in waiting.items() if own]


def _kind(topic: str) -> str:
    return next((prefix for prefix in (RETRY_PREFIX, REVIVE_PREFIX) if topic.startswith(prefix)), topic)


def read_table(path: Path, name: str) -> dict[str, Any]:
    """The table of that name in a file; empty, perhaps with a warning, where it cannot be read."""
    try:
        return dict(parse_rocketmq_json(path.read_text(encoding="utf-8"))[name])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("table not read path=%s error=%r", path, error)
        return {}
