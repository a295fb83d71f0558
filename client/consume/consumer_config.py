"""What can be set on a consumer besides its group, its topics and its listener."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.proto.errors import ConfigError
from penstock.runtime.conf import require

from .. import arguments

CONSUME_FROM_FIRST = "first"
CONSUME_FROM_LAST = "last"
TIME_MS_MAX = arguments.OFFSET_MAX
DEFAULT_INSTANCE = "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Limits and times of one consumer. Every buffer has a bound; reaching it pauses fetching, never drops."""

    commit_interval_ms: int = 1000  # at most this much is consumed again after a crash (RocketMQ: 5 s)
    # Of one reply. With 1 MiB arrays come at 0.75 of this speed, 4 MiB are no faster and hold up other calls longer.
    fetch_bytes: int = 4 * 1024 * 1024
    fetch_queue_bytes: int = 2 * 1024 * 1024  # of one queue in one reply
    fetch_wait_ms: int = 15_000  # how long a broker holds a fetch that finds nothing
    fetches_in_flight: int = 3  # per broker, each of other queues; one alone while there is nothing to read
    queue_bytes: int = 4 * 1024 * 1024  # fetched and not finished, per queue: no further fetch above it
    queue_messages: int = 100_000  # the same as a count
    queue_span: int = 200_000  # offsets between the first unfinished message of a queue and the next fetch
    buffer_bytes: int = 64 * 1024 * 1024  # of all queues together
    revoke_timeout_ms: int = 30_000  # how long running work holds a queue that is, or if orderly may be, another's
    settle_ms: int = 500  # after a session moved: wait for the other members before taking their queues
    retry_delays_ms: tuple[int, ...] = (1000, 2000, 5000, 10_000, 30_000)  # of a failed message; the last one repeats
    suspend_ms: int = 1000  # orderly: before a failed message is tried again
    close_timeout_ms: int = 5000
    check_crc: bool = True  # of every message; 0.2 µs per KiB, outside the interpreter lock
    skip_damaged: bool = False  # step over records that their broker cannot read, with an error in the log
    offsets_directory: str | os.PathLike[str] | None = None  # broadcasting; None: ~/.penstock/offsets

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            name, value = f"consumer {each.name}", getattr(self, each.name)
            if each.type == "int":
                most = arguments.OFFSET_MAX if each.name in ("queue_bytes", "buffer_bytes") else arguments.LEVEL_MAX
                arguments.whole(name, value, 1, most)
            elif each.type == "bool":
                arguments.flag(name, value)
        require(self.fetch_wait_ms <= 60_000, "consumer fetch_wait_ms must be at most 60000", self.fetch_wait_ms)
        delays = arguments.several("consumer retry_delays_ms", self.retry_delays_ms, "a list of delays", ConfigError)
        require(bool(delays), "consumer retry_delays_ms must name at least one delay", self.retry_delays_ms)
        for delay in delays:
            arguments.whole("one of consumer retry_delays_ms", delay, 0, arguments.LEVEL_MAX)
        require(
            isinstance(self.offsets_directory, (str, os.PathLike, type(None))),
            "consumer offsets_directory must be a path",
            self.offsets_directory,
        )

    @property
    def offsets_root(self) -> Path:
        return Path(self.offsets_directory or Path.home() / ".penstock" / "offsets")


def check_consume_from(consume_from: str | int) -> str | int:
    """``"first"``, ``"last"`` or milliseconds since 1970 as they are. Raises ConfigError: anything else."""
    is_time = isinstance(consume_from, int) and not isinstance(consume_from, bool) and 0 <= consume_from <= TIME_MS_MAX
    if is_time or consume_from in (CONSUME_FROM_FIRST, CONSUME_FROM_LAST):
        return consume_from
    raise arguments.wrong(
        "consume_from", consume_from, f"'first', 'last' or a timestamp in milliseconds, 0..{TIME_MS_MAX}"
    )


def new_client_id() -> str:
    """``host@process#random``: another one for every consumer, also in containers that share host name and pid."""
    return f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(4)}"


def stable_client_id() -> str:
    """``host@DEFAULT``: the same after a restart, so that a broadcasting consumer finds its offsets again."""
    return f"{socket.gethostname()}@{DEFAULT_INSTANCE}"
