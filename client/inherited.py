"""What becomes of clients in a process that was forked: they belong to the one that has made them.

A child has their memory, and none of their threads. Its sends would take the numbers of its parent's, and brokers would
take them for repetitions.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, NoReturn, Self
from weakref import WeakSet

from penstock.proto.errors import ClientClosed

_made: WeakSet[Any] = WeakSet()
_left: list[object] = []  # what clients of the parent had: to end it here might wait for the parent's threads


class Client:
    """What belongs to the process that makes it: in a child, every use but ``close`` raises ClientClosed."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        _made.add(made)
        return made

    @abstractmethod
    def close(self) -> None:
        """End it; ``with`` does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _traceback: object) -> None:
        self.close()


class _Inherited(Client):
    """A client whose process is another one. Has no locks: somebody may have held them at the fork."""

    def close(self, *_: object, **__: object) -> None:
        """Nothing is this process's."""

    def __enter__(self) -> NoReturn:
        self._refuse()

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self) -> NoReturn:
        kind, process = self.__dict__["_was"]
        raise ClientClosed(f"the {kind} was made in process {process}, which has forked: make one in each process")


def _in_child() -> None:
    for client in list(_made):
        own = client.__dict__
        _left.append(dict(own))
        for name in [name for name in own if name.startswith("_")]:  # methods that somebody has kept refuse too
            del own[name]
        own["_was"] = type(client).__name__, os.getppid()
        client.__class__ = _Inherited
    _made.clear()


os.register_at_fork(after_in_child=_in_child)
