"""Files and directories of the simulated disk: what was written, what was synced, and what a power cut leaves."""

from __future__ import annotations

import random

import numpy as np

from penstock.broker.store.disk import Bytes

PAGE = 4096
SECTOR = 512


class File:
    def __init__(self) -> None:
        self.data: Bytes = np.zeros(0, np.uint8)
        self.saved: Bytes = np.zeros(0, np.uint8)
        self.sizes: list[int] = [0]  # each that a cut may leave: the saved one, and all since
        self.forgotten: dict[int, bytes] = {}  # pages that count as written and are not, as they were then
        self.modified_ms = 0

    def resize(self, size: int) -> None:
        if size != len(self.data):
            grown = np.zeros(size, np.uint8)
            kept = min(size, len(self.data))
            grown[:kept] = self.data[:kept]
            self.data = grown
            self.sizes.append(size)

    @property
    def is_saved(self) -> bool:
        return len(self.sizes) == 1 and bytes(self.saved) == bytes(self.data)

    def sync(self) -> None:
        before, self.saved = self.saved, self.data.copy()
        self.sizes = [len(self.data)]
        for page in self._still_forgotten():
            self.saved[page : page + PAGE] = 0
            self.saved[page : page + PAGE][: len(before[page : page + PAGE])] = before[page : page + PAGE]

    def forget(self) -> None:
        """A sync has failed, and the system takes what it could not write for written, as Linux does."""
        saved = np.zeros(len(self.data), np.uint8)
        saved[: len(self.saved)] = self.saved[: len(self.data)]
        for page in range(0, len(self.data), PAGE):
            if (saved[page : page + PAGE] != self.data[page : page + PAGE]).any():
                self.forgotten[page] = self.data[page : page + PAGE].tobytes()

    def written(self, start: int, end: int) -> None:
        """These bytes are to be written out, whatever they are."""
        for page in range(start - start % PAGE, end, PAGE):
            self.forgotten.pop(page, None)

    def _still_forgotten(self) -> list[int]:
        """Pages that nobody has written to since; the others are known to be dirty again."""
        for page, content in list(self.forgotten.items()):
            if self.data[page : page + PAGE].tobytes() != content:
                del self.forgotten[page]
        return list(self.forgotten)

    def after_cut(self, survival: Survival) -> Bytes:
        """The bytes that a cut leaves."""
        size = survival.choose(self.sizes)
        if self.is_saved:
            return self.saved.copy()
        left, seen = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        left[: len(self.saved)] = self.saved[:size]
        seen[: len(self.data)] = self.data[:size]
        for page in self._still_forgotten():
            seen[page : page + PAGE] = left[page : page + PAGE]
        dirty = left != seen
        if dirty.any():
            for page in range(0, size, PAGE):
                if dirty[page : page + PAGE].any():
                    survival.keep(left[page : page + PAGE], seen[page : page + PAGE])
        return left


class Directory:
    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.saved: dict[str, File | Directory] = {}
        self.pending: list[dict[str, File | Directory | None]] = []  # each happens whole, in this order

    def change(self, changes: dict[str, File | Directory | None]) -> None:
        _apply(self.names, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.saved = dict(self.names)
        self.pending = []

    def after_cut(self, survival: Survival) -> Directory:
        names = dict(self.saved)
        for changes in self.pending[: survival.count(len(self.pending))]:
            _apply(names, changes)
        left = Directory()
        for name, entry in names.items():
            if isinstance(entry, Directory):
                left.names[name] = entry.after_cut(survival)
            else:
                file = File()
                file.data = entry.after_cut(survival)
                file.sync()
                file.modified_ms = entry.modified_ms
                left.names[name] = file
        left.saved = dict(left.names)
        return left


def _apply(names: dict[str, File | Directory], changes: dict[str, File | Directory | None]) -> None:
    for name, entry in changes.items():
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry


class Survival:
    """What one cut keeps: nothing, everything, or each with a probability; by pages or by sectors."""

    def __init__(self, chooser: random.Random, share: float | None = None) -> None:
        self._chooser = chooser
        self._share = chooser.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0)) if share is None else share
        self._unit = chooser.choice((PAGE, PAGE, SECTOR))

    def count(self, changes: int) -> int:
        return round(changes * self._share) if self._share in (0, 1) else self._chooser.randint(0, changes)

    def choose(self, sizes: list[int]) -> int:
        return sizes[0] if self._share == 0 else sizes[-1] if self._share == 1 else self._chooser.choice(sizes)

    def keep(self, left: Bytes, seen: Bytes) -> None:
        for start in range(0, len(left), self._unit):
            if self._share == 1 or self._chooser.random() < self._share:
                left[start : start + self._unit] = seen[start : start + self._unit]


def files_in(directory: Directory) -> list[File]:
    found: list[File] = []
    for entry in directory.names.values():
        if isinstance(entry, Directory):
            found += files_in(entry)
        else:
            found.append(entry)
    return found


def sync_names(directory: Directory) -> None:
    directory.sync()
    for entry in directory.names.values():
        if isinstance(entry, Directory):
            sync_names(entry)
