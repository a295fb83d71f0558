"""Answers of one connection of which it is not known yet whether the client has got them.

What is written to a socket may never be read. But frames come in their order, and every client answers a PING: once it
has answered one that was sent behind an answer, it has that answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .frames import Type, frame
from .outgoing import Outgoing

UNCONFIRMED_MAX: Final = 4096
"""Answers of a connection; a client that lets there be more answers no ping."""
_CONTENT: Final = b"answered"
_PING: Final = frame(Type.PING, 0, 0, _CONTENT)


class Unconfirmed:
    """Event loop only. One ping is on its way at a time, so that its answer cannot be taken for another's."""

    def __init__(self, out: Outgoing, abort: Callable[[str], None]) -> None:
        """``abort`` ends the connection for a reason."""
        self._out = out
        self._abort = abort
        self._is_asking = False  # True while a ping is on its way
        self._asked: dict[int, Callable[[], None]] = {}  # by stream, those that it was sent behind
        self._later: dict[int, Callable[[], None]] = {}  # those that were sent since

    @property
    def is_waiting(self) -> bool:
        """True while the client has not shown that it has all."""
        return bool(self._asked or self._later)

    def add(self, stream: int, lost: Callable[[], None]) -> None:
        """An answer was sent, whole; ``lost`` is called if the client turns out not to have got it."""
        self._later[stream] = lost
        if len(self._asked) + len(self._later) > UNCONFIRMED_MAX:
            self._abort("it answers no ping")
        elif not self._is_asking:
            self._ask()

    def acknowledge(self, content: bytes) -> None:
        """The client has answered a ping, which may be another, or none that there was."""
        if content == _CONTENT and self._is_asking:
            self._is_asking = False
            self._asked = {}
            if self._later:
                self._ask()

    def break_off(self, stream: int) -> None:
        """The client has broken that stream off: it does not take the answer."""
        lost = self._asked.pop(stream, None) or self._later.pop(stream, None)
        if lost is not None:
            lost()

    def forget(self) -> None:
        """This end closes the connection: nobody knows whether the client has got the last answers."""
        self._asked, self._later = {}, {}

    def drop(self) -> None:
        unconfirmed = [*self._asked.values(), *self._later.values()]
        self.forget()
        for lost in unconfirmed:
            lost()

    def _ask(self) -> None:
        self._is_asking = True
        self._asked, self._later = self._later, {}
        self._out.send(_PING)
