"""SIGTERM as Ctrl-C, for commands that have to clean up."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator


@contextlib.contextmanager
def term_interrupts() -> Iterator[None]:
    """Within the block SIGTERM raises KeyboardInterrupt, so that ``finally`` runs; without it processes would stay."""

    def interrupt(_: int, __: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
