"""UNIQ_KEY: the message id that a client gives, in RocketMQ's form.

| Offset | Size | Field |
|---|---|---|
| 0 | 4 | IPv4 address of this host; random where there is none |
| 4 | 2 | low bits of the process id |
| 6 | 4 | random number of this process (RocketMQ: hash of its class loader) |
| 10 | 4 | milliseconds since the start of the month, local time |
| 14 | 2 | counter |

Written as 32 upper-case hexadecimal digits. Containers often share address and process id: the random number tells
them apart. A forked process takes a new one, and so does one whose clock is set back.
"""

from __future__ import annotations

import itertools
import os
import socket
import time

_BACK_MS = 20  # threads see it so when they overtake each other; the counter begins again in no less


def _local_address() -> bytes:
    """The address that packets to the world would leave from; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return os.urandom(4)


class _Source:
    """What the keys of one process have in common. Threads share it: ``next`` on the counter is atomic."""

    def __init__(self, address: bytes) -> None:
        self.address = address
        self.renew()

    def renew(self) -> None:
        """Take this process's id and a new random number."""
        self.prefix = (self.address + (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)).hex().upper()
        self.counter = itertools.count(int.from_bytes(os.urandom(2), "big"))
        self.month_ms = _month_ms(time.time())
        """When this month began, and when the next one does."""
        self.latest_ms = 0


def _month_ms(now_s: float) -> tuple[int, int]:
    """Begin and end of the month, local time."""
    local = time.localtime(now_s)
    begin, end = (
        time.mktime((local.tm_year, month, 1, 0, 0, 0, 0, 0, -1)) for month in (local.tm_mon, local.tm_mon + 1)
    )
    return int(begin) * 1000, int(end) * 1000


_source: _Source | None = None


def new_unique_key() -> str:
    """A key that no other call, in any process, has given in this month."""
    global _source
    source = _source
    if source is None:
        source = _source = _Source(_local_address())
        os.register_at_fork(after_in_child=source.renew)
    now_ms = time.time_ns() // 1_000_000
    if now_ms < source.latest_ms - _BACK_MS:
        source.renew()
    source.latest_ms = now_ms
    begin_ms, end_ms = source.month_ms
    if not begin_ms <= now_ms < end_ms:
        source.month_ms = _month_ms(now_ms / 1000)
        begin_ms = source.month_ms[0]
    return f"{source.prefix}{now_ms - begin_ms & 0xFFFFFFFF:08X}{next(source.counter) & 0xFFFF:04X}"
