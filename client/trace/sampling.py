"""Which messages are traced, where only a share is: their ids say it.

So producer and consumers with the same share trace the same messages, with all their tries, today and tomorrow. The
share is taken of a number that is mixed from the last 16 digits of an id: of an offset message id these are its
position in the log, which a whole batch is asked for at once.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from penstock.runtime.conf import require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_DIGITS: Final = 16
_MASK: Final = (1 << 64) - 1
_FIRST: Final = 0x9E3779B97F4A7C15
_SECOND: Final = 0xD6E8FEB86659FD93
_BITS: Final = 53


def checked_share(trace: Any) -> float:
    """``trace`` as a share of messages: False is 0, True is 1. Raises ConfigError: no share."""
    is_number = isinstance(trace, (bool, int, float))
    require(is_number and 0 <= trace <= 1, "trace must be False, True, or a share of the messages, 0..1", trace)
    return float(trace)


class Sample:
    """A share of all messages."""

    def __init__(self, share: float) -> None:
        self.is_all = share >= 1
        self._below = int(share * (1 << _BITS))

    def has(self, message_id: str) -> bool:
        if self.is_all:
            return True
        try:
            number = int(message_id[-_DIGITS:], 16)
        except ValueError:  # an id that another kind of client has made
            number = zlib.crc32(message_id.encode())
        number = number * _FIRST & _MASK
        number = (number ^ number >> 32) * _SECOND & _MASK
        return number >> 64 - _BITS < self._below

    def positions(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The indexes of the messages at those positions of a log that belong to it."""
        import numpy as np

        if self.is_all:
            return np.arange(len(positions))
        numbers = positions.astype(np.uint64) * np.uint64(_FIRST)
        numbers = (numbers ^ numbers >> np.uint64(32)) * np.uint64(_SECOND)
        return np.flatnonzero(numbers >> np.uint64(64 - _BITS) < np.uint64(self._below))
