"""What RocketMQ's brokers write under ``config/``, and what that says of messages which only they would deliver.

RocketMQ keeps messages on their way to a consumer in topics of its own. Those with a delay level or a time, and halves
of transactions, go on here. So do those that a group gets again, in ``%RETRY%`` and the group, which its members read.
Of others ``consumerOffset.json`` says what is done:

| Topic | Holds | By which group |
|---|---|---|
| ``rmq_sys_REVIVE_LOG_…`` | check points and answers of POP | ``CID_RMQ_SYS_REVIVE_GROUP`` |
| ``%RETRY%…_TOPIC`` | messages that a group gets again by POP | the group |

A check point comes to the first of these when its time is over. Until then it is a message for later, in
``rmq_sys_wheel_timer``, of which ``timercheck`` says what is done:

| Offset | Type | Field |
|---|---|---|
| 0 | i64 | lastReadTimeMs: what was due by then is delivered |
| 8 | i64 | lastTimerLogFlushPos |
| 16 | i64 | lastTimerQueueOffset: of what lies below it in the topic's queue |
| 24 | i64 | masterTimerQueueOffset |

With ``enableLmq`` all offsets are in ``lmqConsumerOffset.json`` instead. These files are written every some seconds, so
after a kill more seems to wait than does.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.formats.hashing import tags_code
from penstock.formats.record.properties import REAL_TOPIC, TIMER_OUT_MS
from penstock.proto.errors import Corrupt
from penstock.proto.names import RETRY_PREFIX, REVIVE_PREFIX, TIMER_TOPIC

OFFSETS_FILE: Final = "consumerOffset.json"
OFFSETS_FILE_WITH_LIGHTS: Final = "lmqConsumerOffset.json"
POP_CODES: Final = tuple(tags_code(tag) for tag in ("ck", "ack", "bAck"))
"""The tags codes of check points and answers of POP."""
log = logging.getLogger(__name__)

_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(-?\d+)(?=\s*:)')  # strings are skipped whole
_GROUPS = {REVIVE_PREFIX: "CID_RMQ_SYS_REVIVE_GROUP"}
_WAITING = {
    REVIVE_PREFIX: "what was received by POP and not acknowledged is not delivered again",
    RETRY_PREFIX: "messages that are due again go only to who subscribes to these topics",
}


_TIMER_CHECK = struct.Struct(">4q")

FindTagged = Callable[[str, int, int, int], Iterable[tuple[int, Mapping[str, str]]]]
"""(topic, queue id, from, up to) -> (offset, properties) of the records whose tags codes are :data:`POP_CODES`."""


class TimerProgress(NamedTuple):
    """Of the messages for later, those due at ``due_ms`` or before, with offsets below ``end``, are delivered."""

    due_ms: int
    end: int


_NOTHING_DONE = TimerProgress(-1, 0)


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


def timer_progress(config: Path) -> TimerProgress | None:
    """What ``timercheck`` in that directory says; None without the file. Raises Corrupt: the file is too short."""
    path = config / "timercheck"
    try:
        with path.open("rb") as file:
            head = file.read(_TIMER_CHECK.size)
    except FileNotFoundError:
        return None
    if len(head) < _TIMER_CHECK.size:
        raise Corrupt(f"{path}: {len(head)} bytes, where RocketMQ's has {_TIMER_CHECK.size} or more", path=str(path))
    read_ms, _, queue_offset, _ = _TIMER_CHECK.unpack(head)
    return TimerProgress(read_ms, queue_offset)


def leftovers(
    ranges: Mapping[tuple[str, int], tuple[int, int]], config: Path, find_tagged: FindTagged
) -> list[Leftover]:
    """What a store of RocketMQ holds that nobody else delivers.

    ``ranges``: [minimum, maximum) of each topic and queue; ``config``: the store's directory of that name. Progress
    that cannot be read counts as none.
    """
    committed: dict[tuple[str, int], int] = {}
    for name in (OFFSETS_FILE, OFFSETS_FILE_WITH_LIGHTS):
        for key, queues in read_table(config / name, "offsetTable").items():
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
    revived = waiting[REVIVE_PREFIX]
    for topic in _check_points(*ranges.get((TIMER_TOPIC, 0), (0, 0)), config, find_tagged):
        revived[topic] = revived.get(topic, 0) + 1
    return [Leftover(tuple(own), sum(own.values()), _WAITING[kind]) for kind, own in waiting.items() if own]


def _check_points(low: int, high: int, config: Path, find_tagged: FindTagged) -> Iterable[str]:
    """The topic of each check point, or answer of POP, that waits for its time."""
    try:
        done = timer_progress(config) or _NOTHING_DONE
    except Corrupt as error:
        log.warning("progress of messages for later not read error=%s", error)
        done = _NOTHING_DONE
    for offset, properties in find_tagged(TIMER_TOPIC, 0, low, high) if low < high else ():
        topic, due = properties.get(REAL_TOPIC, ""), properties.get(TIMER_OUT_MS, "")
        is_done = offset < done.end and due.isdecimal() and int(due) <= done.due_ms
        if topic.startswith(REVIVE_PREFIX) and not is_done:
            yield topic


def _kind(topic: str) -> str:
    return next((prefix for prefix in (RETRY_PREFIX, REVIVE_PREFIX) if topic.startswith(prefix)), topic)


def read_table(path: Path, name: str) -> dict[str, Any]:
    """The table of that name in a file; empty, perhaps with a warning, where it cannot be read."""
    try:
        return dict(parse_rocketmq_json(path.read_text(encoding="utf-8"))[name])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("table not read path=%s error=%s: %s", path, type(error).__name__, error)
        return {}
