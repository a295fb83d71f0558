"""Waiting for the outcome of sends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout

from penstock.proto.errors import BrokerUnavailable, DeliveryFailed, OutcomeUnknown

from ..message import FailedDelivery, Message, SendReceipt

GRACE_S = 0.25
"""The sender thread ends what is late; a waiting caller gives it this long to say how, then says unknown itself."""


def result_of(future: Future[SendReceipt], topic: str, deadline: float) -> SendReceipt:
    """The receipt; the error that the send ended with; or unknown when the time is up."""
    try:
        return future.result(max(deadline - time.monotonic(), 0.0) + GRACE_S)
    except FutureTimeout:
        raise OutcomeUnknown(f"topic {topic}: no answer within the time-out; the message may be stored") from None
    except CancelledError:
        raise BrokerUnavailable(f"topic {topic}: the send was cancelled") from None


def results_of(sends: Sequence[tuple[Message, Future[SendReceipt]]], deadline: float) -> list[SendReceipt]:
    """All receipts.

    Raises:
        DeliveryFailed: some failed and some did not, or not all in the same way; else that one error.
    """
    receipts, failures = [], []
    for message, future in sends:
        try:
            receipts.append(result_of(future, message.topic, deadline))
        except Exception as error:  # noqa: BLE001  sorted and raised below
            failures.append(FailedDelivery(message.topic, 1, error, (message.body,)))
    if not failures:
        return receipts
    first = failures[0].error
    if not receipts and all(failure.error is first for failure in failures):
        raise first
    unknown = [failure for failure in failures if isinstance(failure.error, OutcomeUnknown)]
    refused = [failure for failure in failures if not isinstance(failure.error, OutcomeUnknown)]
    raise DeliveryFailed(
        f"{len(failures)} of {len(sends)} messages of a batch failed, first: {first}", refused=refused, unknown=unknown
    )
