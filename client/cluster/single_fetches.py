"""Fetches that are made one at a time, by any thread: each has connections of its own while it is under way."""

from __future__ import annotations

import threading
from typing import Final

from penstock.proto.errors import ClientClosed
from penstock.proto.wire.broker_pb2 import FetchHeader

from .fetch_links import FetchCall, FetchLinks, OpenLink

IDLE_MAX: Final = 8
"""What is kept for those to come."""


class SingleFetches:
    """Those of one client instance. Thread-safe."""

    def __init__(self, open_link: OpenLink) -> None:
        self._open_link = open_link
        self._lock = threading.Lock()
        self._idle: list[FetchLinks] = []
        self._used: set[FetchLinks] = set()
        self._is_closed = False

    def fetch(self, address: str, header: FetchHeader, timeout_s: float) -> SingleFetch:
        """Begin to fetch. Raises ClientClosed."""
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the client is closed: make a new one")
            links = self._idle.pop() if self._idle else FetchLinks(self._open_link)
            self._used.add(links)
        try:
            return SingleFetch(self, links, links.fetch(address, header, timeout_s))
        except BaseException:  # closed meanwhile: nobody else would close these
            links.close()
            self.give_back(links)
            raise

    def give_back(self, links: FetchLinks) -> None:
        """Nothing is under way on these."""
        with self._lock:
            self._used.discard(links)
            if not self._is_closed and not links.is_ended and len(self._idle) < IDLE_MAX:
                self._idle.append(links)
                return
        links.close()

    def close(self) -> None:
        """End all: what is under way breaks. May be called again."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            used = list(self._used)
        for links in idle:
            links.close()
        for links in used:
            links.end()


class SingleFetch:
    """One fetch, which ends by :meth:`result` or :meth:`cancel`."""

    def __init__(self, owner: SingleFetches, links: FetchLinks, call: FetchCall) -> None:
        self._owner = owner
        self._links = links
        self._call = call
        self._is_over = False

    def result(self) -> bytes:
        """The framed reply, waiting for it. Raises the PenstockError that it ended with."""
        try:
            while self._call.outcome is None:
                self._links.landed(None)
        finally:
            self._end(is_whole=self._call.outcome is not None)
        return self._call.message()

    def cancel(self) -> None:
        """Nobody wants it any more; harmless when it has ended."""
        self._end(is_whole=False)

    def _end(self, *, is_whole: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        if not is_whole:
            self._links.close()
        self._owner.give_back(self._links)
