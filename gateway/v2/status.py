"""Outcomes as the protocol tells them: a code and a text in the answer, never an error of gRPC."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.gateway.v2.wire.definition_pb2 import OK, Code, Status
from penstock.proto import errors
from penstock.proto.errors import PenstockError

log = logging.getLogger(__name__)

_TEXT_MAX = 1000

# The first that fits counts.
_CODES: tuple[tuple[type[PenstockError], Code], ...] = (
    (errors.FlowControl, Code.TOO_MANY_REQUESTS),
    (errors.BufferFull, Code.TOO_MANY_REQUESTS),
    (errors.LimitReached, Code.TOO_MANY_REQUESTS),
    (errors.TopicNotFound, Code.TOPIC_NOT_FOUND),
    (errors.GroupNotFound, Code.CONSUMER_GROUP_NOT_FOUND),
    (errors.MessageNotFound, Code.MESSAGE_NOT_FOUND),
    (errors.MessageTypeConflict, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (errors.MessageTooLarge, Code.MESSAGE_BODY_TOO_LARGE),
    (errors.OffsetOutOfRange, Code.ILLEGAL_OFFSET),
    (errors.TransactionEnded, Code.INVALID_TRANSACTION_ID),
    (errors.Unauthorized, Code.UNAUTHORIZED),
    (errors.Forbidden, Code.FORBIDDEN),
    (errors.InvalidArgument, Code.BAD_REQUEST),
    (errors.NotEnoughReplicas, Code.HA_NOT_AVAILABLE),
    (errors.FlushTimeout, Code.MASTER_PERSISTENCE_TIMEOUT),
    (errors.ReplicaTimeout, Code.SLAVE_PERSISTENCE_TIMEOUT),
    (errors.OutcomeUnknown, Code.PROXY_TIMEOUT),
    (errors.BrokerUnavailable, Code.INTERNAL_SERVER_ERROR),
)


class Refusal(Exception):
    """A request, or a message of it, that is not done, with the protocol's code for the reason."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.status = Status(code=code, message=text[:_TEXT_MAX])


def ok() -> Status:
    """The status of what was done."""
    return Status(code=OK, message="OK")


def named(code: Code) -> Status:
    return Status(code=code, message=Code.Name(code))


def merged(statuses: Iterable[Status]) -> Status:
    """The status of a whole request: that of an entry where all have one code, else MULTIPLE_RESULTS."""
    by_code = {status.code: status for status in statuses}
    return by_code.popitem()[1] if len(by_code) == 1 else named(Code.MULTIPLE_RESULTS)


def status_of(error: Exception, method: str) -> Status:
    """The status that tells of ``error``; one that nobody raised on purpose is logged."""
    if isinstance(error, Refusal):
        return error.status
    if isinstance(error, PenstockError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL_SERVER_ERROR)
        return Status(code=code, message=error.message[:_TEXT_MAX])
    log.error("request failed method=%s error=%r", method, error, exc_info=error)
    return Status(code=Code.INTERNAL_SERVER_ERROR, message=f"{method}: internal error, see the gateway's log")
