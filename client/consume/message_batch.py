"""Messages of one queue as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..message import MessageQueue, MessageView, kind_in

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.formats.record.reading import RecordBatch


class MessageBatch:
    """What one :meth:`~penstock.client.PullConsumer.poll_batch` returned: messages of one queue, in its order.

    The columns are NumPy views over the fetched bytes; nothing is decoded before it is asked for. An empty batch is
    false, and has no queue.
    """

    def __init__(self, queue: MessageQueue, batch: RecordBatch | None, indexes: Sequence[int]) -> None:
        self.queue = queue
        self._batch = batch
        self._indexes = indexes

    @classmethod
    def empty(cls) -> MessageBatch:
        """No messages, of no queue."""
        return cls(MessageQueue("", "", -1), None, ())

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def topic(self) -> str:
        """The topic that all messages lie in: the group's retry topic where they come again."""
        return self.queue.topic

    @property
    def broker_name(self) -> str:
        """The broker group that all messages came from."""
        return self.queue.broker_name

    @property
    def queue_id(self) -> int:
        """The queue of all messages."""
        return self.queue.queue_id

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """One :data:`penstock.formats.record.rows.ROW` per message."""
        if self._batch is None:
            import numpy as np

            from penstock.formats.record.rows import ROW

            return np.empty(0, ROW)
        # A slice keeps the columns views; rows that were picked by tag have to be copied together.
        indexes = self._indexes
        return self._batch.rows[slice(indexes.start, indexes.stop) if isinstance(indexes, range) else list(indexes)]

    @property
    def queue_offsets(self) -> npt.NDArray[np.int64]:
        """Offset of each message in the queue."""
        return self.rows["queue_offset"]

    @property
    def store_timestamps(self) -> npt.NDArray[np.int64]:
        """When the broker stored each message, ms."""
        return self.rows["store_timestamp"]

    @property
    def born_timestamps(self) -> npt.NDArray[np.int64]:
        """When the producer made each message, ms."""
        return self.rows["born_timestamp"]

    @property
    def body_sizes(self) -> npt.NDArray[np.int32]:
        """Bytes of each body as stored."""
        return self.rows["body_size"]

    def bodies(self) -> list[bytes]:
        """Every body as sent, decompressed."""
        if self._batch is None:
            return []
        if len(self._indexes) == len(self._batch):
            return self._batch.bodies()
        return list(map(self._batch.body, self._indexes))

    def messages(self) -> list[MessageView]:
        """Every message as an object."""
        batch, kind = self._batch, kind_in(self.topic)
        return [] if batch is None else [kind(batch, index, self.broker_name) for index in self._indexes]

    def __iter__(self) -> Iterator[MessageView]:
        return iter(self.messages())

    def to_arrow(self) -> Any:
        """The columns as a ``pyarrow.RecordBatch``; an empty batch has none and gives ``None``.

        Raises:
            PenstockError: pyarrow is not installed.
        """
        if self._batch is None:
            return None
        table = self._batch.to_arrow()
        if len(self._indexes) == len(self._batch):
            return table
        if isinstance(self._indexes, range):
            return table.slice(self._indexes.start, len(self._indexes))
        return table.take(list(self._indexes))
