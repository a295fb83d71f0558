"""What RocketMQ's brokers write under ``config/``, and what that says of messages which only they would deliver.

RocketMQ keeps messages on their way to a consumer in topics of its own; progress in these is in two files:

| Topic | Holds | Done up to |
|---|---|---|
| ``SCHEDULE_TOPIC_XXXX``, a queue per delay level | messages with a level | ``delayOffset.json``, by level from 1 |
| ``rmq_sys_REVIVE_LOG_…`` | check points and answers of POP | ``consumerOffset.json``, ``CID_RMQ_SYS_REVIVE_GROUP`` |
| ``%RETRY%…`` | messages that a group gets again | the same, the group |

The files are written every some seconds, so after a kill more seems to wait than does.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.proto.names import RETRY_PREFIX, REVIVE_PREFIX, SCHEDULE_TOPIC

log = logging.getLogger(__name__)

_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(-?\d+)(?=\s*:)')  # strings are skipped whole
_GROUPS = {REVIVE_PREFIX: "CID_RMQ_SYS_REVIVE_GROUP"}
_WAITING = {
    SCHEDULE_TOPIC: "messages that wait for a delay level are not delivered",
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
    levels = {(SCHEDULE_TOPIC, int(level) - 1): offset for level, offset in _table(config / "delayOffset.json").items()}
    committed: dict[tuple[str, int], int] = {}
    for key, queues in _table(config / "consumerOffset.json").items():
        topic, _, group = key.rpartition("@")
        if group == _GROUPS.get(_kind(topic), group):
            for queue_id, offset in queues.items():
                committed[topic, int(queue_id)] = max(offset, committed.get((topic, int(queue_id)), 0))
    waiting: dict[str, dict[str, int]] = {kind: {} for kind in _WAITING}
    for (topic, queue_id), (low, high) in sorted(ranges.items()):
        kind = _kind(topic)
        done = (levels if kind == SCHEDULE_TOPIC else committed).get((topic, queue_id), 0)
        if kind in waiting and high > max(low, done):
            waiting[kind][topic] = waiting[kind].get(topic, 0) + high - max(low, done)
    return [Leftover(tuple(own), sum(own.values()), _WAITING[kind]) for kind, own in waiting.items() if own]


def _kind(topic: str) -> str:
    return next((prefix for prefix in (RETRY_PREFIX, REVIVE_PREFIX) if topic.startswith(prefix)), topic)


def _table(path: Path) -> dict[str, Any]:
    """The ``offsetTable`` of a file; empty, perhaps with a warning, where it cannot be read."""
    try:
        return dict(parse_rocketmq_json(path.read_text(encoding="utf-8"))["offsetTable"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("offsets not read path=%s error=%r", path, error)
        return {}
