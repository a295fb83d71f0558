"""What ``broker.conf`` says of messages for later."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.conf import key, require


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """Messages that are delivered later."""

    delay_s_max: int = key(
        "timerMaxDelaySec", default=366 * 24 * 3600, doc="how far ahead a message may be due", differs="3 days"
    )
    messages_max: int = key(
        "timerMessagesMax",
        default=20_000_000,
        doc="that wait at once; 16 bytes of memory each",
        differs="has no such key",
    )

    def __post_init__(self) -> None:
        in_range = 1 <= self.delay_s_max <= 366 * 24 * 3600
        require(in_range, f"timerMaxDelaySec must be 1..{366 * 24 * 3600}", self.delay_s_max)
        require(self.messages_max >= 1, "timerMessagesMax must be 1 or more", self.messages_max)
