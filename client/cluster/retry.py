"""When a call is made again: what its end says about the batch it carried, and how long to wait before the next try."""

from __future__ import annotations

import enum
import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar, overload

from penstock.proto import errors
from penstock.proto.errors import PenstockError
from penstock.proto.handshakes import NEVER_CONNECTED

log = logging.getLogger(__name__)

T = TypeVar("T")

NEVER = float("inf")
"""The deadline of what may take for ever."""
_FOR_EVER_S: Final = 1e8
BACK_OFF_S_MIN = 0.02
BACK_OFF_S_MAX = 1.0

# gRPC's words when no connection could be made; any other broken call may have reached the broker.
_NEVER_CONNECTED = (NEVER_CONNECTED, "DNS resolution failed", "Connection refused")


class Outcome(enum.Enum):
    """The state of a batch after a call that brought no receipt."""

    NOT_STORED = "not stored"  # may be sent anywhere
    UNKNOWN = "unknown"  # only the same broker group, with the same sequence, keeps it single
    REFUSED = "refused"  # not stored, and useless to try again unchanged


def never_reached(error: PenstockError) -> bool:
    """True if no connection was made, so that the broker saw nothing of the call."""
    if not isinstance(error, errors.BrokerUnavailable) or "status" not in error.details:
        return False
    return any(words in error.message for words in _NEVER_CONNECTED)


def outcome_of(error: PenstockError) -> Outcome:
    """Sort ``error``, made by :func:`penstock.proto.errors.from_rpc_error`, by what it means for the batch.

    ``details["status"]`` tells a call that broke (nobody's word, the broker may have stored the batch) from a
    broker's own answer.
    """
    if isinstance(error, errors.BrokerUnavailable) and "status" in error.details:
        return Outcome.NOT_STORED if never_reached(error) else Outcome.UNKNOWN
    if isinstance(error, errors.OutcomeUnknown) or error.details.get("is_unknown"):
        return Outcome.UNKNOWN
    if isinstance(error, (errors.Retryable, errors.DiskFull, errors.StoreClosed)) or is_unwritable(error):
        return Outcome.NOT_STORED
    if isinstance(error, errors.Refused):
        return Outcome.REFUSED
    return Outcome.UNKNOWN


def is_unwritable(error: PenstockError) -> bool:
    """True if that part of the topic, its group's or a queue, is not for writers (any more), as routes will tell."""
    return isinstance(error, errors.Forbidden) and not error.details.keys().isdisjoint(("perm", "queues"))


def counts_as_refusal(error: PenstockError) -> bool:
    """True if a broker itself said no; False for a group that is between two masters, waits for its replicas, has just
    been closed to writers, or has lost a queue, which routes will tell."""
    is_between = isinstance(error, (errors.NotMaster, errors.NotEnoughReplicas)) or error.details.get("no_master")
    return not (never_reached(error) or is_between or is_unwritable(error))


def reworded(error: PenstockError, addition: str) -> PenstockError:
    """The same error with more words; class and details stay."""
    kind = type(error)
    made = kind.__new__(kind)
    PenstockError.__init__(made, f"{error.message}; {addition}", **error.details)
    return made


def back_off_s(attempt: int) -> float:
    """How long to wait before try number ``attempt`` (the second is 1): doubling, up to a second, 20 % jitter."""
    exponential = min(BACK_OFF_S_MIN * 2.0 ** min(attempt - 1, 16), BACK_OFF_S_MAX)
    return exponential * random.uniform(0.8, 1.2)  # noqa: S311  spreads retries, protects nothing


def may_pass(error: PenstockError) -> bool:
    """True if the same call may do later: not after what a broker has forgotten, which stays so."""
    return error.retryable and not isinstance(error, errors.LaneForgotten)


def pause_before_retry_s(
    error: PenstockError, attempt: int, deadline: float, healing: type[PenstockError] | None = None
) -> float | None:
    """How long to wait after try number ``attempt`` ended with ``error``; None if there should be no further try.

    There is none after an error that no repetition heals, and none that could begin only after ``deadline``: that of
    the whole call, in ``time.monotonic()``'s seconds.
    """
    pause_s = back_off_s(attempt)
    is_passing = may_pass(error) or (healing is not None and isinstance(error, healing))
    return pause_s if is_passing and time.monotonic() + pause_s < deadline else None


def again(call: Callable[[], T], timeout_s: float, healing: type[PenstockError] | None = None) -> T:
    """The result of ``call()``, made again by the rule of :func:`pause_before_retry_s` for at most ``timeout_s``.

    ``healing``: an error that passes here, though it does not elsewhere.

    Raises:
        PenstockError: the last one.
    """
    deadline = time.monotonic() + timeout_s
    for attempt in itertools.count(1):
        try:
            return call()
        except PenstockError as error:
            pause_s = pause_before_retry_s(error, attempt, deadline, healing)
            if pause_s is None:
                raise
            log.info("call failed, tried again error=%s", error)
            time.sleep(pause_s)
    raise AssertionError("no end but by return or raise")


def require_timeout(timeout_s: float | None) -> float:
    """As :func:`check_timeout`, of a call that has no default of its own. Raises InvalidArgument also for None."""
    if timeout_s is None:
        raise errors.InvalidArgument("timeout_s=None: must be 0 or more seconds")
    return check_timeout(timeout_s)


@overload
def check_timeout(timeout_s: float) -> float: ...
@overload
def check_timeout(timeout_s: None) -> None: ...
def check_timeout(timeout_s: float | None) -> float | None:
    """A time-out as threads and calls can wait it: more than three years, as infinity, is three years.

    ``None`` stands for the call's own default.

    Raises:
        InvalidArgument: it is negative, or not a number.
    """
    try:
        is_length = timeout_s is None or (timeout_s >= 0 and not isinstance(timeout_s, bool))
    except TypeError:
        is_length = False
    if not is_length:
        raise errors.InvalidArgument(f"timeout_s={timeout_s!r:.60}: must be 0 or more seconds")
    return None if timeout_s is None else float(min(timeout_s, _FOR_EVER_S))  # NumPy's float32 no lock can wait
