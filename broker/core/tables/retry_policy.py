"""How long a group's failed messages wait before they come again: RocketMQ's ``groupRetryPolicy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.proto.errors import InvalidArgument
from penstock.proto.wire import common_pb2

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"

_LEVELS_SKIPPED: Final = 2
"""RocketMQ begins at the third entry of a table, and of ``messageDelayLevel``."""
_DELAYS_MAX: Final = 64
_EXPONENT_MAX: Final = 32
_DELAY_MS_MAX: Final = 366 * 24 * 3_600_000
_INITIAL_MS, _MAX_MS, _MULTIPLIER = 5_000, 7_200_000, 2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``delays_ms``: before the first retry, the second, …; the last one repeats.

    Without them ``initial_ms * multiplier**n``, up to ``max_ms``; without those the broker's delay levels.
    """

    delays_ms: tuple[int, ...] = ()
    initial_ms: int = 0
    max_ms: int = 0
    multiplier: int = 0

    def table(self, levels_ms: Sequence[int]) -> list[int]:
        """Milliseconds before the first retry, the second, …; the last entry is for all behind it."""
        if self.delays_ms:
            return list(self.delays_ms)
        if self.initial_ms:
            return [min(self.max_ms, self.initial_ms * self.multiplier**n) for n in range(_EXPONENT_MAX + 1)]
        return list(levels_ms[_LEVELS_SKIPPED:] or levels_ms[-1:])

    def to_json(self) -> dict[str, Any]:
        """The value of ``groupRetryPolicy``."""
        if self.delays_ms:
            skipped = [self.delays_ms[0]] * _LEVELS_SKIPPED
            return {"type": CUSTOMIZED, "customizedRetryPolicy": {"next": [*skipped, *self.delays_ms]}}
        if self.initial_ms:
            exponential = {"initial": self.initial_ms, "max": self.max_ms, "multiplier": self.multiplier}
            return {"type": EXPONENTIAL, "exponentialRetryPolicy": exponential}
        return {"type": CUSTOMIZED}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RetryPolicy:
        """The policy of such a value. Raises TypeError, ValueError or AttributeError if it is none."""
        if document.get("type") == EXPONENTIAL:
            found = document.get("exponentialRetryPolicy") or {}
            return cls(
                initial_ms=max(int(found.get("initial", _INITIAL_MS)), 1),
                max_ms=max(int(found.get("max", _MAX_MS)), 1),
                multiplier=max(int(found.get("multiplier", _MULTIPLIER)), 1),
            )
        delays = [int(delay) for delay in (document.get("customizedRetryPolicy") or {}).get("next") or ()]
        return cls(tuple(delays[_LEVELS_SKIPPED:] or delays[-1:]))

    def to_wire(self) -> common_pb2.RetryPolicy:
        """The wire's message of it."""
        return common_pb2.RetryPolicy(
            delays_ms=self.delays_ms, initial_ms=self.initial_ms, max_ms=self.max_ms, multiplier=self.multiplier
        )

    @classmethod
    def from_wire(cls, group: str, wanted: common_pb2.RetryPolicy) -> RetryPolicy:
        """The policy that somebody wants ``group`` to have. Raises InvalidArgument: says what is allowed."""
        if len(wanted.delays_ms) > _DELAYS_MAX or not all(0 < ms <= _DELAY_MS_MAX for ms in wanted.delays_ms):
            raise InvalidArgument(
                f"group {group}: retry_policy of {len(wanted.delays_ms)} delays: at most {_DELAYS_MAX} are allowed, "
                f"each of 1..{_DELAY_MS_MAX} ms"
            )
        numbers = wanted.initial_ms, wanted.max_ms, wanted.multiplier
        if not any(numbers):
            return cls(tuple(wanted.delays_ms))
        if wanted.delays_ms:
            raise InvalidArgument(f"group {group}: retry_policy: give delays, or initial, maximum and multiplier")
        initial_ms, max_ms, multiplier = numbers
        if not (0 < initial_ms <= max_ms <= _DELAY_MS_MAX and 1 <= multiplier <= 100):
            raise InvalidArgument(
                f"group {group}: retry_policy of initial {initial_ms} ms, maximum {max_ms} ms, multiplier "
                f"{multiplier}: 0 < initial <= maximum <= {_DELAY_MS_MAX} and 1 <= multiplier <= 100 are allowed"
            )
        return cls((), initial_ms, max_ms, multiplier)
