"""What ``broker.conf`` says of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.conf import key, require


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Halves of transactions, and when their producers are asked about them."""

    timeout_ms: int = key(
        "transactionTimeOut",
        default=6000,
        doc="a half that is undecided for so long is asked about",
        differs="the clock is the broker's, from the half's store time on",
    )
    check_max: int = key(
        "transactionCheckMax", default=15, doc="a half that was asked about so often goes to TRANS_CHECK_MAX_TIME_TOPIC"
    )
    check_interval_ms: int = key(
        "transactionCheckInterval",
        default=30_000,
        doc="between two questions about a half",
        differs="counts for each half by itself, and only questions that a producer could be asked count",
    )
    refuses: bool = key("rejectTransactionMessage", default=False, doc="halves are refused")

    def __post_init__(self) -> None:
        day_ms = 24 * 3600 * 1000
        require(0 <= self.timeout_ms <= day_ms, f"transactionTimeOut must be 0..{day_ms}", self.timeout_ms)
        require(1 <= self.check_max <= 10_000, "transactionCheckMax must be 1..10000", self.check_max)
        in_range = 10 <= self.check_interval_ms <= day_ms
        require(in_range, f"transactionCheckInterval must be 10..{day_ms}", self.check_interval_ms)
