"""What listeners say of their messages, and which of their failures are told."""

from __future__ import annotations

import enum
import logging
import reprlib
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.proto.errors import InvalidArgument

from ...message import MessageQueue

log = logging.getLogger(__name__)

LINES_PER_S: Final = 10
"""Failures that are told in a second; the others are counted."""

Listener = Callable[[Any], Any]


class ConsumeResult(enum.Enum):
    """What a listener says about a message. Nothing at all (``None``) means success; anything else is an error."""

    SUCCESS = "success"
    RETRY_LATER = "retry_later"


class Failures:
    """Which failures are told: some each second. Written by all workers, who may tell one too many."""

    def __init__(self) -> None:
        self._until_s = 0.0
        self._told = self._left_out = 0

    def count(self, now_s: float) -> int | None:
        """How many before this one were not told; None if this one is not either."""
        if now_s >= self._until_s:
            self._until_s, self._told = now_s + 1.0, 0
        if self._told >= LINES_PER_S:
            self._left_out += 1
            return None
        self._told += 1
        left_out, self._left_out = self._left_out, 0
        return left_out

    def tell(self, queue: MessageQueue, offset: int, attempts: int, error: BaseException | None) -> None:
        """Log one, unless others were logged just before."""
        left_out = self.count(time.monotonic())
        if left_out is None:
            return
        log.warning(
            "listener failed queue=%s offset=%d attempts=%d error=%r not_told=%d",
            *(queue, offset, attempts, error or ConsumeResult.RETRY_LATER, left_out),
            # The trace once: the tries after it fail in the same way most of the time.
            exc_info=error if attempts == 1 and not isinstance(error, TimeoutError) else None,
        )


def is_success(outcome: object) -> bool:
    """True if a listener with that answer has taken its message."""
    return outcome is None or outcome is ConsumeResult.SUCCESS


def complaint(outcome: object) -> BaseException | None:
    """The error in a listener's answer that is not success, or None for RETRY_LATER.

    An answer of another kind says nothing about the message, so it comes again, as after RocketMQ's null.
    """
    if outcome is ConsumeResult.RETRY_LATER:
        return None
    return InvalidArgument(
        f"the listener returned {reprlib.repr(outcome)}: it must return ConsumeResult.SUCCESS, RETRY_LATER or None"
    )
