"""Where a log deletes topics: between two deletions lies a life of the topic, whose queue offsets are its own.

A Penstock broker deletes a topic, or a light queue, by a record of the topic :data:`~penstock.proto.names.STATE_TOPIC`
with the tag ``TOPIC_DELETED`` and the body ``{"topicName": …}``. Its messages stay in the log; its queues have none of
what lies in front of the last such record, and begin at 0 behind it. RocketMQ's logs have no such records.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import numpy.typing as npt

from penstock.formats.hashing import string_hash
from penstock.proto.names import STATE_TOPIC

from .files import Bytes
from .scan.scanning import Rows, has_no_entry

log = logging.getLogger(__name__)

TAG = "TOPIC_DELETED"
_TAGS_CODE = string_hash(TAG)
_STATE = STATE_TOPIC.encode()


def find_deletion_rows(buffer: Bytes, rows: Rows) -> npt.NDArray[np.int64]:
    """Numbers of the rows that delete a topic."""
    is_tagged = (rows["tags_code"] == _TAGS_CODE) & (rows["topic_size"] == len(_STATE)) & (rows["queue_id"] == 0)
    found: npt.NDArray[np.int64] = np.flatnonzero(is_tagged & ~has_no_entry(rows))
    starts = rows["topic_position"][found].tolist()
    return found[[buffer[at : at + len(_STATE)].tobytes() == _STATE for at in starts]]


def deleted_topic(body: bytes, position: int) -> str | None:
    """The topic that the record at this position of the log deletes; None, and a warning, if its body names none."""
    try:
        return str(json.loads(body)["topicName"])
    except (ValueError, KeyError, TypeError) as error:
        log.warning("deletion of no topic passed over position=%d error=%r", position, error)
        return None
