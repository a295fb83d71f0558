"""The ``timeout_s`` of every call."""

from __future__ import annotations

from penstock.proto.errors import InvalidArgument


def check_timeout(timeout_s: float | None) -> None:
    """Refuse a time-out that is no length of time; ``None`` stands for the call's own default.

    Raises:
        InvalidArgument: it is negative, or not a number.
    """
    if timeout_s is not None and not timeout_s >= 0:
        raise InvalidArgument(f"timeout_s={timeout_s!r}: must be 0 or more seconds")
