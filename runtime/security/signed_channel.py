"""A channel whose every call is signed."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.runtime.wrapped_channel import WrappedChannel

from .credentials import Credentials
from .signatures import Signer


def signed(channel: Any, credentials: Credentials) -> WrappedChannel:
    return WrappedChannel(channel, partial(SignedCall, signer=Signer(credentials)))


class SignedCall:
    def __init__(self, method: Any, signer: Signer) -> None:
        self._method = method
        self._signer = signer

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._method(*args, metadata=self._signer.metadata(), **settings)

    def future(self, *args: Any, **settings: Any) -> Any:
        return self._method.future(*args, metadata=self._signer.metadata(), **settings)
