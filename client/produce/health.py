"""Which brokers a producer avoids for a while, because they were slow or failed. Pure: times are passed in."""

from __future__ import annotations

import bisect

# RocketMQ's MQFaultStrategy: from this latency on, leave the broker alone for that long.
LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
AVOID_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
FAILURE_LATENCY_MS = 10_000  # what a failed call counts as


class BrokerHealth:
    """Which brokers answered slowly or failed, and until when they are avoided.

    A preference only: when every broker is avoided, all are used. Kept per broker, not per queue, so ten thousand
    queues cost nothing.
    """

    def __init__(self) -> None:
        self._avoid_until_ms: dict[str, float] = {}

    def on_latency(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        avoid_ms = AVOID_MS[max(bisect.bisect_right(LATENCY_MS, latency_ms) - 1, 0)]
        if avoid_ms:
            self._avoid_until_ms[broker_name] = now_ms + avoid_ms
        else:
            self._avoid_until_ms.pop(broker_name, None)

    def on_failure(self, broker_name: str, now_ms: float) -> None:
        """A call failed: counts as ten seconds."""
        self.on_latency(broker_name, FAILURE_LATENCY_MS, now_ms)

    def is_avoided(self, broker_name: str, now_ms: float) -> bool:
        """True if another broker is preferred now."""
        return now_ms < self._avoid_until_ms.get(broker_name, 0.0)
