"""Stores to look into, damage to do to them, and proof that nobody wrote to them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import golden


def fingerprint(root: Path) -> dict[str, tuple[Any, ...]]:
    """Name, kind, size, time and content of everything below ``root``."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = os.lstat(path)
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    """Fails if anything below ``root`` is different afterwards."""
    before = fingerprint(root)
    yield
    assert fingerprint(root) == before


def unpack(name: str, directory: Path) -> Path:
    """The golden store without its large timer wheel."""
    only = ["commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "checkpoint", "abort"]
    return golden.unpack(name, directory, only=[*only, "config", "epochFileCheckpoint", "lock"])
