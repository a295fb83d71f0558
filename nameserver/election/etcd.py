"""The coordinator store in etcd: linearizable reads, and transactions that compare one key's value.

Spoken over etcd's own gRPC interface with the part of it that is needed (``proto/wire/etcd.proto``), since gRPC is
there already; the clients on PyPI are unmaintained or drag in their own protobuf code.

| Key | Value |
|---|---|
| ``/penstock/coordinator`` | random id, made by whoever comes first |
| ``/penstock/register/<broker name>`` | :meth:`~penstock.proto.register.Register.to_json` |
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from penstock.proto.errors import CoordinatorUnavailable
from penstock.proto.register import Register, register_of_json
from penstock.proto.wire import etcd_pb2
from penstock.proto.wire.etcd_pb2_grpc import KVStub
from penstock.runtime.channel import HASTY_CONNECT_TIMEOUT_MS, has_connected, open_async_channel

TIMEOUT_S = 1.0
PREFIX = "/penstock/"

T = TypeVar("T")


class EtcdStore:
    """Registers in the etcd cluster at ``endpoints``; event loop only. The last good one is asked first."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._channels = {
            endpoint: open_async_channel(endpoint, connect_timeout_ms=HASTY_CONNECT_TIMEOUT_MS)
            for endpoint in endpoints
        }
        self._id = ""
        self._texts: dict[str, str] = {}  # by broker group: the text that was read last, which replace compares with

    async def id(self) -> str:
        if not self._id:
            key = f"{PREFIX}coordinator"
            value = await self._get(key)
            if value is None:
                await self._put(key, None, uuid.uuid4().hex)
                value = await self._get(key)
            if not value:
                raise CoordinatorUnavailable(f"etcd: key {key} has no value")
            self._id = value
        return self._id

    async def read(self, broker_name: str) -> Register | None:
        key = self._key(broker_name)
        value = await self._get(key)
        if value is None:
            return None
        try:
            register = register_of_json(value)
        except ValueError as error:
            raise CoordinatorUnavailable(
                f"etcd: key {key} holds no register ({error}): restore it from a copy"
            ) from error
        self._texts[broker_name] = value
        return register

    async def replace(self, before: Register | None, after: Register) -> bool:
        return await self._put(self._key(after.broker_name), self._text_of(before), after.to_json())

    def _text_of(self, register: Register | None) -> str | None:
        """The text under which etcd has the register: another release may write the same register otherwise."""
        if register is None:
            return None
        text = self._texts.get(register.broker_name)
        return text if text is not None and register_of_json(text) == register else register.to_json()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)

    def _key(self, broker_name: str) -> str:
        return f"{PREFIX}register/{broker_name}"

    async def _get(self, key: str) -> str | None:
        request = etcd_pb2.RangeRequest(key=key.encode())
        reply = await self._tried(lambda stub: stub.Range(request, timeout=TIMEOUT_S), repeat=True)
        try:
            return reply.kvs[0].value.decode() if reply.kvs else None
        except UnicodeDecodeError as error:
            raise CoordinatorUnavailable(f"etcd: key {key} holds no text") from error

    async def _put(self, key: str, before: str | None, after: str) -> bool:
        """True if ``key`` held ``before`` and holds ``after`` now. Sent once: a repeat would find its own value."""
        compare = etcd_pb2.Compare(result=etcd_pb2.Compare.EQUAL, key=key.encode())
        if before is None:
            compare.target, compare.version = etcd_pb2.Compare.VERSION, 0
        else:
            compare.target, compare.value = etcd_pb2.Compare.VALUE, before.encode()
        put = etcd_pb2.RequestOp(request_put=etcd_pb2.PutRequest(key=key.encode(), value=after.encode()))
        request = etcd_pb2.TxnRequest(compare=[compare], success=[put])
        reply = await self._tried(lambda stub: stub.Txn(request, timeout=TIMEOUT_S), repeat=False)
        return bool(reply.succeeded)

    async def _tried(self, call: Callable[[Any], Awaitable[Any]], *, repeat: bool) -> Any:
        """The first endpoint's answer. A change goes to the next endpoint only if this one was not reached."""
        said = ""
        for endpoint, channel in list(self._channels.items()):
            is_reached = await has_connected(channel, TIMEOUT_S)
            try:
                if is_reached:
                    async with asyncio.timeout(2 * TIMEOUT_S):
                        return await call(KVStub(channel))  # type: ignore[no-untyped-call]  # generated code
                said = f"{endpoint}: no connection"
            except (grpc.RpcError, TimeoutError) as error:
                said = f"{endpoint}: {_reason(error)}"
            self._channels[endpoint] = self._channels.pop(endpoint)  # asked last from now on
            if is_reached and not repeat:
                break
        raise CoordinatorUnavailable(f"etcd does not answer: {said}")


def _reason(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else type(error).__name__
