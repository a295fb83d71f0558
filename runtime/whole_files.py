"""Small files that are replaced whole: a crash leaves the old content or the new, never a part of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, keep_as: Path | None = None) -> None:
    """Replace the file's content by ``content``, durably. A missing directory is made.

    ``keep_as``: the name under which the old file stays; at every moment one of the two names has a whole file.

    Raises:
        OSError: the file has its old content, or, if only its directory could not be synced, the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.tmp")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep_as is not None and path.exists():
            path.replace(keep_as)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def damage(error: Exception) -> str:
    """What an error in reading a document says of it, in words."""
    if isinstance(error, KeyError):
        return f"no {error} in it"
    return "not of its form" if isinstance(error, (AttributeError, TypeError)) else str(error)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
