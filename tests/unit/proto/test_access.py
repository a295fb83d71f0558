"""Signed calls at a server with users: who is let in, and whose calls end when the file of users changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.proto.errors import ConfigError, Forbidden, PenstockError, TopicNotFound, Unauthorized, from_rpc_error
from penstock.runtime.channel import new_server, open_async_channel, open_channel, reporting, reporting_stream
from penstock.runtime.security.access import Access, Doorkeeper
from penstock.runtime.security.credentials import PLAIN, Credentials, Security
from penstock.runtime.security.signatures import AGE_S_MAX
from tests.support.client.refusals import with_the_servers_word
from tests.support.cluster.certificates import put
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually

SERVICE = "penstock.test.Door"
LOADER, READER, INNER = Credentials("loader", "s-1"), Credentials("reader", "s-2"), Credentials("cluster", "s-0")
FORMS = ("unary", "answers", "requests", "conversation", "generator")


class Servicer:
    """A method of each form; a request of ``b"wait"`` is answered after somebody has set ``done``."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    @reporting
    async def unary(self, request: bytes, context: Any) -> bytes:
        if request == b"wait":
            await self._wait()
        if request == b"fail":
            raise TopicNotFound("no such topic")
        return request

    @reporting_stream
    async def answers(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        if request == b"wait":
            await self._wait()
        yield request

    @reporting
    async def requests(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        total = b""
        async for request in requests:
            if request == b"wait":
                await self._wait()
            total += request
        return total

    @reporting
    async def conversation(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            if request == b"wait":
                await self._wait()
            await context.write(request)

    @reporting_stream
    async def generator(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"wait":
                await self._wait()
            yield request

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        methods: dict[str, Any] = {
            "unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "answers": grpc.unary_stream_rpc_method_handler(self.answers),
            "requests": grpc.stream_unary_rpc_method_handler(self.requests),
            "conversation": grpc.stream_stream_rpc_method_handler(self.conversation),  # type: ignore[arg-type]
            "generator": grpc.stream_stream_rpc_method_handler(self.generator),
        }
        inner = {"BrokerSession": grpc.unary_unary_rpc_method_handler(self.unary)}
        return [
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler("penstock.v1.Nameserver", inner),
        ]


class Door:
    """A server with users, on a port."""

    def __init__(self, directory: Path) -> None:
        self.users = directory / "users"
        self.allow(LOADER, READER)
        self.now_s = time.time
        self.access = Access(self.users, INNER, lambda: self.now_s())
        self.servicer = Servicer()
        self.address = ""

    def allow(self, *users: Credentials) -> None:
        put(self.users, "".join(f"{user.access_key} = {user.secret_key}\n" for user in users))

    async def call(self, form: str, credentials: Credentials | None, *requests: bytes, service: str = SERVICE) -> Any:
        """What one call answers; its error is raised as the server raised it."""
        security = PLAIN if credentials is None else Security(credentials=credentials)
        async with open_async_channel(self.address, security) as channel:
            path = f"/{service}/{form}"

            async def call() -> Any:
                if form in ("unary", "BrokerSession"):
                    return await channel.unary_unary(path)(requests[0], timeout=20)
                if form == "answers":
                    return [each async for each in channel.unary_stream(path)(requests[0], timeout=20)]
                if form == "requests":
                    return await channel.stream_unary(path)(iter(requests), timeout=20)
                return [each async for each in channel.stream_stream(path)(iter(requests), timeout=20)]

            try:
                return await with_the_servers_word(call)
            except grpc.RpcError as error:
                raise from_rpc_error(error, "server") from None


@contextlib.asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Door]:
    door = Door(directory)
    server = new_server([Doorkeeper(door.access)])
    server.add_generic_rpc_handlers(tuple(door.servicer.handlers()))
    door.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with door.access.following():
        try:
            yield door
        finally:
            await server.stop(None)


@in_own_loop
async def test_users_are_served_by_every_form_of_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        assert await door.call("unary", LOADER, b"a") == b"a"
        assert await door.call("answers", READER, b"a") == [b"a", b"a"]
        assert await door.call("requests", LOADER, b"a", b"b") == b"ab"
        assert await door.call("conversation", LOADER, b"a", b"b") == [b"a", b"b"]
        assert await door.call("generator", LOADER, b"a", b"b") == [b"a", b"b"]
        with pytest.raises(TopicNotFound):
            await door.call("unary", LOADER, b"fail")


@pytest.mark.parametrize("form", FORMS)
@in_own_loop
async def test_nobody_else_is(tmp_path: Path, form: str) -> None:
    async with opened(tmp_path) as door:
        with pytest.raises(Unauthorized, match="not signed"):
            await door.call(form, None, b"a")
        for wrong in (Credentials("loader", "s-2"), Credentials("nobody", "s-1")):
            with pytest.raises(Unauthorized, match="unknown here, or the call was signed with another secret"):
                await door.call(form, wrong, b"a")


@in_own_loop
async def test_a_signature_that_is_used_again_later_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        door.now_s = lambda: time.time() + AGE_S_MAX + 2
        with pytest.raises(Unauthorized, match="set the clocks"):
            await door.call("unary", LOADER, b"a")


@in_own_loop
async def test_what_belongs_to_the_cluster_is_refused_to_its_users(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        with pytest.raises(Forbidden, match=r"'loader' may not call /penstock\.v1\.Nameserver/BrokerSession"):
            await door.call("BrokerSession", LOADER, b"a", service="penstock.v1.Nameserver")
        assert await door.call("BrokerSession", INNER, b"a", service="penstock.v1.Nameserver") == b"a"
        assert await door.call("unary", INNER, b"a") == b"a"


@pytest.mark.parametrize("form", FORMS)
@in_own_loop
async def test_a_removed_users_calls_end_and_nobody_elses(tmp_path: Path, form: str) -> None:
    async with opened(tmp_path) as door:
        theirs = asyncio.create_task(door.call(form, LOADER, b"wait"))
        others = asyncio.create_task(door.call(form, READER, b"wait"))
        await eventually(lambda: door.servicer.waiting == 2)
        door.allow(READER)
        with pytest.raises(Unauthorized, match="'loader' was removed or has another secret") as caught:
            await theirs
        assert not door.servicer.done.is_set(), "it was not answered before"
        assert caught.value.details["is_unknown"], "it may have been carried out"
        with pytest.raises(Unauthorized, match="unknown here"):
            await door.call("unary", LOADER, b"a")
        assert (door.servicer.waiting, door.servicer.cancelled) == (1, 1)
        door.servicer.done.set()
        assert b"wait" in await others


@in_own_loop
async def test_another_secret_ends_the_calls_that_were_signed_with_the_former(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        waiting = asyncio.create_task(door.call("unary", LOADER, b"wait"))
        await eventually(lambda: door.servicer.waiting == 1)
        anew = Credentials("loader", "s-9")
        door.allow(anew, READER)
        with pytest.raises(Unauthorized):
            await waiting
        assert await door.call("unary", anew, b"a") == b"a"


@in_own_loop
async def test_a_new_user_is_let_in_while_the_server_runs(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        late = Credentials("late", "s-3")
        door.allow(LOADER, READER, late)
        answer: Any = None
        while answer is None:
            with contextlib.suppress(Unauthorized):
                answer = await door.call("unary", late, b"a")


@in_own_loop
async def test_a_wrong_file_of_users_changes_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as door:
        put(door.users, "loader\n")
        await eventually(lambda: "users:1: not of the form key = value" in caplog.text)
        door.users.unlink()
        await eventually(lambda: "cannot be read: No such file" in caplog.text)
        assert await door.call("unary", LOADER, b"a") == b"a"
        assert not [record for record in caplog.records if "s-1" in record.getMessage()]


def test_a_user_with_the_clusters_key_is_refused_at_start(tmp_path: Path) -> None:
    users = put(tmp_path / "users", "cluster = s-7\n")
    with pytest.raises(ConfigError, match="access key 'cluster' is that of innerClientAuthenticationCredentials"):
        Access(users, INNER)
    users.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody may use it"):
        Access(users, INNER)


@in_own_loop
async def test_threads_sign_their_calls_too(tmp_path: Path) -> None:
    def call(address: str) -> list[Any]:
        with open_channel(address, Security(credentials=LOADER)) as channel:
            unary = channel.unary_unary(f"/{SERVICE}/unary")
            return [
                unary(b"a", timeout=20),
                unary.future(b"b", timeout=20).result(),
                list(channel.stream_stream(f"/{SERVICE}/generator")(iter([b"c"]), timeout=20)),
            ]

    async with opened(tmp_path) as door:
        assert await asyncio.to_thread(call, door.address) == [b"a", b"b", [b"c"]]


@in_own_loop
async def test_calls_leave_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        for form in FORMS:
            await door.call(form, LOADER, b"a")
        with contextlib.suppress(PenstockError):
            await door.call("unary", LOADER, b"fail")
        await eventually(lambda: not door.access._calls)
