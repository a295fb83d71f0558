"""Frames of a broker's data port, which moves record bytes over TCP, or TLS over TCP.

| Offset | Size | Field |
|---|---|---|
| 0 | 4 | size of the content, u32 big-endian |
| 4 | 4 | number, u32: who asks chooses it; the answer has the same |
| 8 | 2 | method, u16: :class:`Method`; the answer has the same |
| 10 | 2 | kind, u16: :class:`Kind` |
| 12 | size | content |

A client asks a broker for its data port (``BrokerData/Open``), connects to it, and says :attr:`Method.HELLO`; nothing
else is taken before. From then on requests may follow each other without waiting, and an answer comes whenever it is
due. An error with number 0 is about the connection, which ends then. A request that *stands* has any number of
answers, and ends with an error or the connection.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

HEAD: Final = struct.Struct(">IIHH")
VERSION: Final = 1
HELLO_BYTES_MAX: Final = 16 << 10
FRAME_BYTES_MAX: Final = 64 << 20


class Method(enum.IntEnum):
    """What a request asks for."""

    HELLO = 0  # a Hello -> nothing
    PING = 1  # nothing -> nothing, at once: whoever gives no answer is frozen
    APPEND = 2  # AppendHeader and records (proto/frames.py) -> AppendReceipt
    FETCH = 3  # FetchHeader (proto/frames.py) -> FetchReply and records; nothing: that fetch waits no longer
    END = 4  # EndRequest (transactions.proto) -> EndReply
    LISTEN = 5  # ListenRequest (replies.proto) -> again and again ListenEvent and records; it stands
    RECEIVE = 6  # ReceiveHeader (pop.proto) -> ReceiveReply and records; nothing: that receive ends
    ACKNOWLEDGE = 7  # AcknowledgeRequest (pop.proto) -> AcknowledgeReply
    CHANGE_INVISIBLE = 8  # ChangeInvisibleRequest (pop.proto) -> ChangeInvisibleReply
    REPLICATE = 9  # ReplicaReports, one by one -> ReplicationHeaders and log bytes (replication.proto); brokers only
    JOIN = 10  # JoinRequest (transactions.proto) -> again and again ProducerEvent; it stands
    STAGE = 11  # StageHeader (pipeline.proto) and records -> StageReply


class Kind(enum.IntEnum):
    """What a frame is."""

    REQUEST = 0
    ANSWER = 1
    ERROR = 2  # the content is an error (proto/errors.py, ``to_bytes``)
