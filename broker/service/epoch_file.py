"""``epochFileCheckpoint`` in the store root: which master wrote which part of the log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.replication.epochs import Epoch, EpochHistory, decode, encode

FILE_NAME: Final = "epochFileCheckpoint"
FIRST_EPOCH: Final = 1


def load_epochs(root: Path) -> EpochHistory:
    """The history of the log at ``root``; without a file one epoch that began it, as nobody was ever elected.

    Raises:
        Corrupt: the file is damaged.
    """
    path = root / FILE_NAME
    try:
        history = decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        history = EpochHistory()
    return history if history.entries else EpochHistory([Epoch(FIRST_EPOCH, 0)])


def save_epochs(root: Path, history: EpochHistory) -> None:
    """Write the history; durable on return."""
    path, fresh = root / FILE_NAME, root / f"{FILE_NAME}.tmp"
    with fresh.open("wb") as file:
        file.write(encode(history))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(root, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
