"""Small files of a cluster's directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .errors import DeployError

FOR_ALL, FOR_OWNER = 0o666, 0o600


def write_whole(path: Path, text: str, mode: int = FOR_ALL) -> None:
    """Write the file as a whole or not at all; ``mode`` says who may read it.

    Raises:
        DeployError: it cannot be written; the former one is still there.
    """
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "x", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise DeployError(f"{path}: cannot be written: {error.strerror}") from error
