"""A queue whose messages the caller of ``poll`` works on: what it has, and how far it is done."""

from __future__ import annotations

from ..message import MessageQueue
from .consumer_config import ConsumerConfig
from .local_queue import Fetched, LocalQueue, Taken


class PulledQueue(LocalQueue):
    """A queue whose messages are handed to the caller of ``poll``."""

    def __init__(self, queue: MessageQueue, auto_commit: bool) -> None:
        super().__init__(queue)
        self._auto_commit = auto_commit
        self.processed = -1  # below it the caller is done, by what it has polled or committed
        self.is_outstanding = False  # the caller has messages that the last poll returned

    def start(self, offset: int) -> None:
        super().start(offset)
        self.processed = offset
        self.is_outstanding = False

    def take(self, max_messages: int) -> Taken:
        chunk: Fetched = self.chunks[0]
        if self._auto_commit and not self.is_outstanding:
            self.processed = self.front()
        self.is_outstanding = True
        taken = chunk.take(max_messages)
        if not len(chunk):
            self.chunks.popleft()
        return taken

    def settle(self, processed: bool) -> None:
        """The caller has come back; with ``processed`` it is done with everything it got."""
        if processed:
            self.processed = self.front()
        self.is_outstanding = False

    def unfinished(self) -> int:
        return self.processed if self.is_outstanding or not self._auto_commit else self.front()

    def to_commit(self) -> int | None:
        return super().to_commit() if self._auto_commit else None

    def is_busy(self) -> bool:
        return self.is_outstanding

    def is_full(self, config: ConsumerConfig) -> bool:
        # What was handed out is the caller's memory, and a caller that never commits may still read.
        return self.held_bytes >= config.queue_bytes or self.held_messages >= config.queue_messages

    def has_room_again(self, config: ConsumerConfig) -> bool:
        return self.held_bytes <= config.queue_bytes // 2 and self.held_messages <= config.queue_messages // 2
