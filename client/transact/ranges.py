"""Offsets of halves, as requests name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Self

from penstock.proto.wire.transactions_pb2 import EndRequest, HalfRange, Resolution

RANGES_MAX: Final = 4096
COUNT_MAX: Final = 1 << 15
"""Ranges and halves of one request; brokers take more, and answer later."""


class Ranges:
    """Offsets at one broker group. Not thread-safe."""

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._found: list[tuple[int, int, int]] = [(offset, 1, 0) for offset in offsets]

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """All of them, none of which holds an offset of another."""
        made = cls()
        for each in sorted(each for part in parts for each in part._found):
            made.add(*each)
        return made

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[int]:
        return (offset for first, count, _ in self._found for offset in range(first, first + count))

    def add(self, first: int, count: int, epoch: int) -> None:
        """So many more, from that one on; ``epoch``: of the log that they are of, 0: nobody knows."""
        if self._found:
            last, had, last_epoch = self._found[-1]
            if (last + had, last_epoch) == (first, epoch):
                self._found[-1] = last, had + count, epoch
                return
        self._found.append((first, count, epoch))

    def requests(self, group: str, resolution: Resolution, *, is_answer: bool = False) -> Iterator[EndRequest]:
        """What asks for them to be decided so, in requests of a moderate size."""
        halves: list[HalfRange] = []
        total = 0
        for first, count, epoch in sorted(self._found):
            while count:
                taken = min(count, COUNT_MAX - total)
                halves.append(HalfRange(offset=first, count=taken, epoch=epoch))
                first, count, total = first + taken, count - taken, total + taken
                if total == COUNT_MAX or len(halves) == RANGES_MAX:
                    yield EndRequest(group=group, halves=halves, resolution=resolution, is_answer=is_answer)
                    halves, total = [], 0
        if halves:
            yield EndRequest(group=group, halves=halves, resolution=resolution, is_answer=is_answer)
