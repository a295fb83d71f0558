"""Errors cross a grpc.aio call as themselves, from each form of handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc._cython.cygrpc import ExecuteBatchError  # what grpc.aio raises: subclass of its InternalError

from penstock.proto.errors import NotMaster, PenstockError, WrongCluster, from_rpc_error
from penstock.runtime.channel import (
    new_server,
    open_async_channel,
    open_channel,
    reported,
    reporting,
    reporting_stream,
)

SERVICE = "penstock.test.Errors"


class Servicer:
    """Every method fails after it has done some of its work."""

    @reporting
    async def unary(self, request: bytes, context: Any) -> bytes:
        raise NotMaster("broker 1 is a slave", epoch=7)

    @reporting
    async def internal(self, request: bytes, context: Any) -> bytes:
        raise ZeroDivisionError("a secret of the server")

    @reporting
    async def conversation(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)
            if request == b"last":
                raise WrongCluster("cluster c1, not c2: ä")

    @reporting_stream
    async def generator(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
            if request == b"last":
                raise WrongCluster("cluster c1, not c2: ä")

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "internal": grpc.unary_unary_rpc_method_handler(self.internal),
                "conversation": grpc.stream_stream_rpc_method_handler(self.conversation),  # type: ignore[arg-type]
                "generator": grpc.stream_stream_rpc_method_handler(self.generator),
            },
        )


def served(scenario: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        server = new_server()
        server.add_generic_rpc_handlers((Servicer().handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await scenario(f"127.0.0.1:{port}")
        finally:
            await server.stop(0)

    asyncio.run(run())


async def unary_error(address: str, method: str) -> PenstockError:
    async with open_async_channel(address) as channel:
        try:
            await channel.unary_unary(f"/{SERVICE}/{method}")(b"")
        except grpc.RpcError as error:
            return from_rpc_error(error, address)
    raise AssertionError("no error")


def test_a_unary_handlers_error_arrives_with_its_details() -> None:
    async def scenario(address: str) -> None:
        error = await unary_error(address, "unary")
        assert type(error) is NotMaster
        assert str(error) == "broker 1 is a slave"
        assert error.details == {"epoch": 7}

    served(scenario)


def test_an_unexpected_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(address: str) -> None:
        error = await unary_error(address, "internal")
        assert type(error) is PenstockError
        assert "secret" not in str(error)

    with caplog.at_level(logging.ERROR):
        served(scenario)
    assert "a secret of the server" in caplog.text


@pytest.mark.parametrize("method", ["conversation", "generator"])
def test_a_stream_handlers_error_arrives_behind_its_answers(method: str) -> None:
    async def scenario(address: str) -> None:
        async with open_async_channel(address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{method}")()
            for message in (b"first", b"last"):
                await call.write(message)
                assert await call.read() == message
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            error = from_rpc_error(caught.value, address)
            assert type(error) is WrongCluster
            assert str(error) == "cluster c1, not c2: ä"

    served(scenario)


def test_threads_with_blocking_channels_get_the_same_errors() -> None:
    def blocking(address: str) -> PenstockError:
        with open_channel(address) as channel:
            call = channel.stream_stream(f"/{SERVICE}/generator")
            try:
                list(call(iter([b"last"])))
            except grpc.RpcError as error:
                return from_rpc_error(error, address)
        raise AssertionError("no error")

    async def scenario(address: str) -> None:
        assert type(await asyncio.to_thread(blocking, address)) is WrongCluster

    served(scenario)


def test_an_answer_that_cannot_be_written_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told = reported(ExecuteBatchError("Failed grpc_call_start_batch: 10", 10), "Service.call")
    assert isinstance(told, PenstockError)
    assert [(record.levelno, record.exc_info) for record in caplog.records] == [(logging.INFO, None)]
