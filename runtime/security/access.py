"""Who may call a server: callers whose signature is that of a user, and for cluster-internal calls, the cluster.

Users are the lines ``accessKey = secretKey`` of one file, which is looked at four times a second. Calls that are under
way when their user is gone, or has another secret, are ended then.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from penstock.proto.errors import ConfigError, Forbidden, PenstockError, Unauthorized

from ..channel import fail
from .credentials import Credentials, check_pair
from .secret_files import read_pairs, stamp_of
from .signatures import claim_of

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
INNER_METHODS: Final = (
    "/penstock.v1.Nameserver/BrokerSession",
    "/penstock.v1.Coordination/",
    "/penstock.v1.BrokerData/REPLICATE",
)
"""Beginnings of the methods by which brokers and nameservers make a cluster: they take only the cluster's own key."""

_UNKNOWN_SECRET: Final = "no user has this"  # noqa: S105  compared with where there is no user, to take as long


class Access:
    """The users of one server, and their calls that are under way. Event loop only."""

    def __init__(self, users_file: Path, inner: Credentials, wall_s: Callable[[], float] = time.time) -> None:
        """``inner``: what brokers and nameservers sign with; a user like others, with more rights.

        Raises:
            ConfigError: the file is missing, open to everybody, or a line of it is wrong.
        """
        self._path = users_file
        self._inner = inner
        self._wall_s = wall_s
        self._stamp = stamp_of(users_file)
        self._users = self._read()
        self._calls: dict[str, set[asyncio.Timeout]] = {}
        log.info("users read file=%s users=%d", users_file, len(self._users))

    def authenticate(self, method: str, metadata: Any) -> Credentials:
        """The user who calls ``method``.

        Raises:
            Unauthorized: nobody that is known. Forbidden: a user calls what belongs to the cluster.
        """
        claim = claim_of(metadata, self._wall_s())
        secret = self._users.get(claim.access_key)
        if not claim.is_proven_by(secret or _UNKNOWN_SECRET) or secret is None:
            raise Unauthorized(
                f"access key {claim.access_key!r}: unknown here, or the call was signed with another secret"
            )
        caller = Credentials(claim.access_key, secret)
        self.check(caller, method)
        return caller

    def check(self, caller: Credentials, method: str) -> None:
        """Raise Forbidden if a user calls what belongs to the cluster."""
        if method.startswith(INNER_METHODS) and caller.access_key != self._inner.access_key:
            raise Forbidden(
                f"access key {caller.access_key!r} may not call {method}: only brokers and nameservers may, with "
                "their innerClientAuthenticationCredentials"
            )

    def secret_of(self, access_key: str) -> str | None:
        """The secret of a user, or None: for protocols whose signatures are not those of :mod:`.signatures`."""
        return self._users.get(access_key)

    @contextlib.asynccontextmanager
    async def admitted(self, caller: Credentials) -> AsyncIterator[None]:
        """Run the block; it is cancelled if the caller is no user any more.

        Raises:
            Unauthorized: then; how much of the call was done is unknown.
        """
        try:
            async with asyncio.timeout(None) as scope:
                if self._users.get(caller.access_key) != caller.secret_key:
                    scope.reschedule(0.0)
                calls = self._calls.setdefault(caller.access_key, set())
                calls.add(scope)
                try:
                    yield
                finally:
                    calls.discard(scope)
                    if not calls:
                        self._calls.pop(caller.access_key, None)
        except TimeoutError:
            if not scope.expired():
                raise
            raise Unauthorized(
                f"access key {caller.access_key!r} was removed or has another secret: the call under way was ended",
                is_unknown=True,
            ) from None

    def reload(self) -> None:
        """Take over the file if it has changed, and end the calls of users that are not in it any more."""
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            users = self._read()
        except ConfigError as error:
            log.error("users not taken over, the former ones stay error=%s", error)
            return
        gone = [key for key, secret in self._users.items() if users.get(key) != secret]
        self._users = users
        ended = 0
        for key in gone:
            for scope in self._calls.get(key, ()):
                scope.reschedule(0.0)
                ended += 1
        log.info("users read anew users=%d removed_or_changed=%d calls_ended=%d", len(users), len(gone), ended)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        following = asyncio.create_task(self._follow(), name="users")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.reload()

    def _read(self) -> dict[str, str]:
        users = read_pairs(self._path)
        for access_key, secret_key in users.items():
            check_pair(access_key, secret_key, self._path)
        if self._inner.access_key in users:
            raise ConfigError(
                f"{self._path}: access key {self._inner.access_key!r} is that of innerClientAuthenticationCredentials: "
                "give users keys of their own"
            )
        return {**users, self._inner.access_key: self._inner.secret_key}


class Doorkeeper(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Stands in front of every method of a server."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler, or one that tells the caller why the call is refused."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        try:
            caller = self._access.authenticate(method, handler_call_details.invocation_metadata)
        except PenstockError as error:
            return _rebuilt(handler, _refusing(error, method))
        return _rebuilt(handler, self._watched(handler, method, caller))

    def _watched(self, handler: Any, method: str, caller: Credentials) -> Callable[..., Awaitable[Any]]:
        behavior = getattr(handler, _kind(handler))
        # A generator would be suspended, out of reach of the cancellation, while gRPC writes what it yields.
        is_generator = inspect.isasyncgenfunction(behavior)

        async def call(request: Any, context: Any) -> Any:
            try:
                async with self._access.admitted(caller):
                    if not is_generator:
                        return await behavior(request, context)
                    async with contextlib.aclosing(behavior(request, context)) as answers:
                        async for answer in answers:
                            await context.write(answer)
            except Unauthorized as error:
                await fail(context, error, method)

        return call


def _refusing(error: PenstockError, method: str) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Any) -> None:
        await fail(context, error, method)

    return call


def _kind(handler: Any) -> str:
    """As ``unary_stream``, by which gRPC names what answers, and what makes a handler of that."""
    return f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"


def _rebuilt(handler: Any, behavior: Any) -> Any:
    return getattr(grpc, f"{_kind(handler)}_rpc_method_handler")(
        behavior, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )
