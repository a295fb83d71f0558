"""Small files that are replaced whole: a crash leaves the old content or the new, never a part of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.proto.errors import ConfigError, StorageError


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


def require_writable(path: Path) -> None:
    """Nothing, if a report can be written there, as far as can be told before the work that it tells of.

    Raises:
        ConfigError: it is a directory, or not writable; or the directory that it is to be in is missing or not
            writable.
    """
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"report {path}: is a directory: name a file in it")
    if _stays(path):
        if not os.access(path, os.W_OK):
            raise ConfigError(f"report {path}: is not writable: name another")
        return
    if not folder.is_dir():
        raise ConfigError(f"report {path}: there is no directory {folder}: make it, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"report {path}: the directory {folder} is not writable: name another")


def write_report(path: Path, text: str) -> None:
    """Write a report whole or not at all, or into the device or pipe that is there, or where a link leads.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        if _stays(path):
            path.write_text(text, encoding="utf-8")
        else:
            replace_file(path, text.encode())
    except OSError as error:
        raise StorageError(f"{path}: the report is not written: {error}") from error


def _stays(path: Path) -> bool:
    """True if what is there is written into, not replaced: ``/dev/stdout`` is a link, perhaps to a file."""
    return path.is_symlink() or (path.exists() and not path.is_file())


DAMAGES = (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError)
"""What reading a document of JSON raises if it is damaged: not JSON, or not of its form."""


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
