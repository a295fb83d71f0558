"""Reading and writing the two files that say how far the derived ones are; see :mod:`penstock.formats.checkpoint`."""

from __future__ import annotations

from penstock.formats.checkpoint import (
    CHECKPOINT_BYTES,
    HINT_AT,
    OWN_BYTES,
    SLOT_BYTES,
    Positions,
    Standard,
    decode_own,
    encode_hint,
    encode_slot,
)
from penstock.formats.directory import CHECKPOINT, OWN_CHECKPOINT

from ..disk import Disk, read_small


class Checkpoint:
    """Reads and writes both files; writing is for one thread at a time, the hint for another."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.is_known = False  # whether positions of ours were found
        self.confirmed = 0  # what lies below was confirmed, as far as :meth:`read` can tell
        self._disk = disk
        self._root = root
        self._paths = (f"{root}/{OWN_CHECKPOINT}", f"{root}/{CHECKPOINT}")
        self._sequence = 0
        self._own = self._standard = -1
        self.standard = Standard.decode(self._content(1))

    def read(self) -> Positions | None:
        """The newest positions that belong to the ``checkpoint`` beside them. Raises WrongStore: of a later version."""
        own = decode_own(self._content(0), self.standard, self._paths[0])
        self._sequence = max(self._sequence, own.sequence)
        self.is_known = own.positions is not None
        if own.positions is None:
            return None
        self.confirmed = max(self.standard.confirm_phy_offset, own.confirmed)
        return own.positions._replace(flushed=max(own.positions.flushed, own.flushed))

    def begin(self) -> None:
        """Open, and if need be make, both files for writing; made ones are not lost in a power cut."""
        is_new = not all(map(self._disk.exists, self._paths))
        self._own, self._standard = (self._disk.open(path, create=True) for path in self._paths)
        if self._disk.size(self._paths[0]) < OWN_BYTES:
            self._disk.pwrite(self._own, bytes(OWN_BYTES), 0)  # no later write needs space
        if is_new:
            self._disk.sync_directory(self._root)

    def write(self, positions: Positions, standard: Standard) -> None:
        """Replace both; durable on return. A crash in between leaves the former ones good."""
        self._sequence += 1
        slot = encode_slot(self._sequence, positions, standard)
        self._disk.pwrite(self._own, slot, self._sequence % 2 * SLOT_BYTES)
        self._disk.sync(self._own)
        self._disk.pwrite(self._standard, standard.encode(), 0)
        self._disk.sync(self._standard)
        self.standard = standard

    def write_hint(self, flushed: int, confirmed: int) -> None:
        """Note the flushed and the confirm offset, without a sync."""
        self._disk.pwrite(self._own, encode_hint(flushed, confirmed), HINT_AT)

    def close(self) -> None:
        for descriptor in (self._own, self._standard):
            if descriptor >= 0:
                self._disk.close(descriptor)
        self._own = self._standard = -1

    def _content(self, number: int) -> bytes:
        return read_small(self._disk, self._paths[number], CHECKPOINT_BYTES) or b""
