"""SIGTERM as Ctrl-C, for commands that have to clean up."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass


class Terminated(KeyboardInterrupt):
    """SIGTERM came: to be handled as Ctrl-C, and told apart in the exit code."""


@dataclass(slots=True)
class Interruption:
    """The first signal that came, if one did."""

    number: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """What shells expect of a command that a signal ended: 130 after SIGINT, 143 after SIGTERM."""
        return 128 + (self.number or signal.SIGINT)


@contextlib.contextmanager
def interrupts() -> Iterator[Interruption]:
    """Within the block SIGTERM and SIGINT raise KeyboardInterrupt, so that ``finally`` runs; without it processes
    would stay. Who handles the exception itself is told by what is yielded here that there was one.
    """
    caught = Interruption()

    def interrupt(number: int, _: types.FrameType | None) -> None:
        caught.number = caught.number or signal.Signals(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    former = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[Callable[[], None]]:
    """Within the block SIGTERM and SIGINT wait until what is yielded here is called, which raises KeyboardInterrupt.

    For work that calls gRPC all the time: an exception that a signal raises inside one of its calls can leave the
    channel waiting for ever when it is closed. A second signal does not wait.
    """
    came: list[int] = []

    def interrupt(number: int, _: types.FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise Terminated if came[0] == signal.SIGTERM else KeyboardInterrupt

    former = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield check
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
