"""What fetches that are under way make a broker hold, in all and for one connection."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from penstock.proto.errors import FlowControl

from ..limits import Limits

QUEUES_UNDER_WAY_MAX: Final = 2_000_000
"""Queues that all fetches under way want together: some 300 MB."""
CONNECTION_SHARE: Final = 4
"""One connection may have replies of the fourth part of ``maxFetchBytesHeld`` waiting."""


class FetchLoad:
    """Counts; event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.fetches = 0
        self.queues = 0
        self.reply_bytes = 0
        self._fetches_of: Counter[Hashable] = Counter()  # by connection
        self._bytes_of: Counter[Hashable] = Counter()

    @contextlib.contextmanager
    def counted(self, connection: Hashable, queues: int) -> Iterator[None]:
        """A fetch is under way in this block. Raises FlowControl: there are enough, or their replies are not taken."""
        self.begin(connection, queues)
        try:
            yield
        finally:
            self.end(connection, queues)

    def begin(self, connection: Hashable, queues: int) -> None:
        """A fetch is under way, until :meth:`end`. Raises FlowControl, as :meth:`counted`."""
        self._check(connection, queues)
        self.fetches += 1
        self.queues += queues
        self._fetches_of[connection] += 1

    def end(self, connection: Hashable, queues: int) -> None:
        """The fetch over that many queues is under way no more."""
        self.fetches -= 1
        self.queues -= queues
        _lower(self._fetches_of, connection, 1)

    def hold(self, connection: Hashable, size: int) -> Callable[[], None]:
        """A reply is about to be sent, and is in memory until what is returned is called."""
        self.reply_bytes += size
        self._bytes_of[connection] += size

        def release() -> None:
            self.reply_bytes -= size
            _lower(self._bytes_of, connection, size)

        return release

    def _check(self, connection: Hashable, queues: int) -> None:
        limits = self._limits
        for what, count, most, name in (
            ("fetches are under way", self.fetches, limits.fetches_max, "maxWaitingFetches"),
            (
                "of this connection",
                self._fetches_of[connection],
                limits.connection_fetches_max,
                "maxFetchesPerConnection",
            ),
            ("bytes of replies are not taken", self.reply_bytes, limits.reply_bytes_max, "maxFetchBytesHeld"),
            (
                "bytes of replies to this connection are not taken",
                self._bytes_of[connection],
                limits.reply_bytes_max // CONNECTION_SHARE,
                f"maxFetchBytesHeld/{CONNECTION_SHARE}",
            ),
            ("queues are waited for", self.queues + queues, QUEUES_UNDER_WAY_MAX, "by all fetches"),
        ):
            if count >= most:
                raise FlowControl(
                    f"fetch refused: {count} {what} ({name}={most}): fetch with fewer consumers, or later"
                )


def _lower(counts: Counter[Hashable], key: Hashable, by: int) -> None:
    counts[key] -= by
    if not counts[key]:
        del counts[key]
