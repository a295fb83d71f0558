"""What a load test is asked to do, and what one of its processes is told."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.formats.record.layout import BODY_BYTES_MAX
from penstock.proto.errors import ConfigError

from .ledger import HEADER_BYTES

STYLES = ("produce", "sync", "async", "asyncio", "columnar")
KINDS = ("produce", "consume", "both")
DEFAULT_SECONDS = 10.0
COLUMNAR_BATCH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One load test. ``count`` and ``seconds`` both limit it; without either it takes 10 s (consume: until idle)."""

    kind: str
    namesrv: str
    topic: str = "load-test"
    size: int = 1024
    count: int | None = None
    seconds: float | None = None
    rate: float | None = None  # messages per second of all producers together
    producers: int = 1
    threads: int = 1  # of each producer, with style sync or asyncio (its tasks): senders that each wait
    consumers: int = 1
    batch: int | None = None  # messages per call; columnar: 10,000, otherwise 1
    keys: int = 0  # so many different keys, which also choose the queue; 0: none
    style: str = "produce"
    verify: bool = False
    queues: int = 8  # of the topic on each broker group, when it has to be made
    group: str = ""
    consume_from: str | int = "first"
    consume_style: str = "messages"  # or "arrays"
    linger_ms: float | None = None
    probe: bool = True  # produce, columnar: measure latency by single sends beside the load
    run: int = field(default_factory=lambda: secrets.randbits(32) or 1)

    def __post_init__(self) -> None:
        _require(self.kind in KINDS, f"load {self.kind}: must be one of {', '.join(KINDS)}")
        _require(self.style in STYLES, f"style {self.style}: must be one of {', '.join(STYLES)}")
        smallest = HEADER_BYTES if self.verify else 1
        why = f" with --verify, whose number takes {HEADER_BYTES} bytes of each body" if self.verify else ""
        _require(self.size >= smallest, f"--size {self.size}: must be at least {smallest}{why}")
        _require(
            self.size <= BODY_BYTES_MAX, f"--size {self.size}: at most {BODY_BYTES_MAX}, the largest body of a message"
        )
        _require(self.count is None or self.count >= 1, f"--count {self.count}: must be at least 1")
        _require(self.seconds is None or self.seconds > 0, f"--seconds {self.seconds}: must be positive")
        _require(self.rate is None or self.rate > 0, f"--rate {self.rate}: must be positive")
        _require(1 <= self.producers <= 64, f"--producers {self.producers}: must be 1..64")
        _require(1 <= self.consumers <= 64, f"--consumers {self.consumers}: must be 1..64")
        _require(self.batch is None or 1 <= self.batch <= 1_000_000, f"--batch {self.batch}: must be 1..1000000")
        _require(0 <= self.keys <= 10_000_000, f"--keys {self.keys}: must be 0..10000000")
        _require(1 <= self.threads <= 512, f"--threads {self.threads}: must be 1..512")
        waits = self.style in ("sync", "asyncio")
        _require(self.threads == 1 or waits, "--threads goes with --sync or --asyncio: others do not wait")
        batches = self.style in ("sync", "columnar")
        _require(
            self.batch in (None, 1) or batches, "--batch goes with --sync or --columnar: others batch by themselves"
        )

    @property
    def effective_batch(self) -> int:
        return self.batch or (COLUMNAR_BATCH if self.style == "columnar" else 1)

    def share(self, number: int) -> dict[str, Any]:
        count = None if self.count is None else self.count // self.producers + (number < self.count % self.producers)
        seconds = DEFAULT_SECONDS if self.count is None and self.seconds is None else self.seconds
        rate = None if self.rate is None else self.rate / self.producers
        share = {"number": number, "count": count, "seconds": seconds, "rate": rate}
        return {**asdict(self), **share, "role": "produce", "effective_batch": self.effective_batch}

    def consumer_job(self, number: int, received_path: Path) -> dict[str, Any]:
        """What consumer ``number`` is told; with ``verify`` it leaves in ``received_path`` what it saw."""
        path = str(received_path) if self.verify else None
        return {**asdict(self), "role": "consume", "number": number, "received_path": path}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
