"""Files with secrets: read only where nobody else may, and never quoted in an error."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from penstock.proto.errors import ConfigError

from ..conf import lines_of, read_limited


def require_private(path: str | Path) -> None:
    """Raise :class:`ConfigError` if others than the file's owner and group may use it.

    A group may, since that is how a secret is shared with a service that is not its owner.

    Raises:
        ConfigError: anybody may read or write it, or it is not there.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if mode & 0o007:
        raise ConfigError(f"{path}: holds a secret, and everybody may use it (mode {mode:04o}): chmod o-rwx {path}")


Stamp = tuple[int, int, int]


def stamp_of(path: str | Path) -> Stamp | None:
    """What is another one when the file was changed or replaced; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_pairs(path: str | Path) -> dict[str, str]:
    """The lines ``key = value`` (or ``key: value``) of a private file; ``#`` begins a comment line.

    Raises:
        ConfigError: names file and line, and nothing of the line.
    """
    require_private(path)
    content = read_limited(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None
    pairs: dict[str, str] = {}
    for number, _, key, value in lines_of(text):
        if not key or not value:
            raise ConfigError(f"{path}:{number}: not of the form key = value")
        if key in pairs:
            raise ConfigError(f"{path}:{number}: the same key stands above already: keep one of them")
        pairs[key] = value
    return pairs
