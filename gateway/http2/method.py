"""What answers the calls of one name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .call import Call


class Method(NamedTuple):
    """Of one path."""

    answer: Callable[[Call], Awaitable[None]]
    """Begins with the request, or, where the client streams, at once. The call ends with it, as OK."""
    is_streaming: bool = False
    """True if the client sends as many messages as it likes; otherwise it is one, :attr:`Call.request`."""
    begins_at_once: bool = False
    """True if it begins as the request comes, and has a task only where it waits.

    Until then it must not need one, as :func:`asyncio.timeout` does.
    """
    takes: Callable[[Call], bool] = lambda _: False
    """Asked first, once the request is there. True: it finishes the call later, or has it :meth:`~Call.go_alone`."""
