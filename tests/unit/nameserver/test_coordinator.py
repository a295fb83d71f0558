"""The coordinator store: in a file, and in etcd where that is installed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.nameserver.election.coordinator import CoordinatorFile, CoordinatorStore
from penstock.nameserver.election.etcd import EtcdStore
from penstock.proto.errors import ConfigError, CoordinatorUnavailable, Corrupt
from penstock.proto.register import new_register
from penstock.runtime import whole_files
from tests.support.waiting import wait_until

FIRST = new_register("c", "broker-a", 0, 0)
SECOND = FIRST.with_set(0, 1, 1, (0, 1))


async def check_compare_and_set(store: CoordinatorStore) -> None:
    assert await store.read("broker-a") is None
    assert not await store.replace(FIRST, SECOND), "there is nothing to be replaced"
    assert await store.replace(None, FIRST)
    assert not await store.replace(None, FIRST)
    assert await store.read("broker-a") == FIRST
    assert await store.replace(FIRST, SECOND)
    assert not await store.replace(FIRST, SECOND.elected(1))
    assert await store.read("broker-a") == SECOND
    results = await asyncio.gather(*(store.replace(SECOND, SECOND.elected(each)) for each in (0, 1)))
    assert sorted(results) == [False, True]


def test_the_file_compares_and_sets_and_remembers(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "controller.json"

    async def scenario() -> None:
        store = CoordinatorFile.open(path)
        await check_compare_and_set(store)
        await store.close()
        again = CoordinatorFile.open(path)
        assert await again.id() == await store.id()
        assert await again.read("broker-a") == await store.read("broker-a")
        await again.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["cut", "id", "register", "name", "binary", "deep", "registers", "set", "list"])
def test_a_damaged_file_is_refused_by_name_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "controller.json"

    async def write() -> None:
        store = CoordinatorFile.open(path)
        await store.replace(None, FIRST)
        await store.close()

    asyncio.run(write())
    document = json.loads(path.read_text())
    if damage == "id":
        document["coordinator"] = ""
    elif damage == "register":
        document["registers"]["broker-a"]["epoch"] = 0
    elif damage == "name":
        document["registers"]["broker-b"] = document["registers"].pop("broker-a")
    elif damage == "registers":
        del document["registers"]
    elif damage == "set":
        del document["registers"]["broker-a"]["sync_state_set"]
    text = json.dumps([document] if damage == "list" else document)
    content = {"cut": text[:-20].encode(), "binary": b"\xff\xfe", "deep": b"[" * 100_000}.get(damage, text.encode())
    path.write_bytes(content)
    with pytest.raises(Exception, match=r"controller\.json") as caught:
        CoordinatorFile.open(path)
    assert isinstance(caught.value, Corrupt) or damage == "binary"
    words = {"registers": "no 'registers' in it", "set": "no 'sync_state_set' in it", "list": "not of its form"}
    assert words.get(damage, "damaged" if damage != "binary" else "") in str(caught.value)
    assert "Error(" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="controllerStorePath") as caught:
        CoordinatorFile.open(tmp_path / "file" / "controller.json")
    assert isinstance(caught.value, ConfigError) or "read" in str(caught.value)


def test_a_second_nameserver_cannot_open_the_same_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "controller.json"
        store = CoordinatorFile.open(path)
        with pytest.raises(ConfigError, match=r"another nameserver has it open"):
            CoordinatorFile.open(path)
        await store.replace(None, FIRST)
        await store.close()
        again = CoordinatorFile.open(path)
        assert await again.read("broker-a") == FIRST
        await again.close()

    asyncio.run(scenario())


def test_etcd_replaces_a_register_that_another_release_wrote_with_fewer_fields() -> None:
    held = json.loads(FIRST.to_json())
    del held["unclean_allowed"], held["unclean_epoch"]
    values = {"/penstock/register/broker-a": json.dumps(held)}

    class Etcd(EtcdStore):
        async def _get(self, key: str) -> str | None:
            return values.get(key)

        async def _put(self, key: str, before: str | None, after: str) -> bool:
            if values.get(key) != before:
                return False
            values[key] = after
            return True

    async def scenario() -> None:
        store = Etcd([])
        assert await store.read("broker-a") == FIRST
        assert await store.replace(FIRST, SECOND)
        assert await store.read("broker-a") == SECOND

    asyncio.run(scenario())


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = CoordinatorFile.open(tmp_path / "store" / "controller.json")
        assert await store.replace(None, FIRST)
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "store").write_text("in the way")
        with pytest.raises(CoordinatorUnavailable, match="cannot be written"):
            await store.replace(FIRST, SECOND)
        assert await store.read("broker-a") == FIRST

    asyncio.run(scenario())


def test_a_change_that_reached_the_file_and_was_not_told_is_taken_back_before_anything_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Path) -> None:
        raise OSError(errno.EIO, "the directory cannot be synced")

    async def scenario() -> None:
        store = CoordinatorFile.open(tmp_path / "controller.json")
        assert await store.replace(None, FIRST)
        with monkeypatch.context() as patch:
            patch.setattr(whole_files, "sync_directory", refuses)
            with pytest.raises(CoordinatorUnavailable, match="cannot be written"):
                await store.replace(FIRST, SECOND)
            with pytest.raises(CoordinatorUnavailable, match="cannot be written"):
                await store.read("broker-a")
        assert await store.read("broker-a") == FIRST
        await store.close()
        again = CoordinatorFile.open(tmp_path / "controller.json")
        assert await again.read("broker-a") == FIRST, "what was told holds over a restart"
        await again.close()

    asyncio.run(scenario())


def with_etcd(endpoint: str, scenario: Callable[[EtcdStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = EtcdStore(["127.0.0.1:1", endpoint])
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(run())


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[str]:
    """A one-node etcd; its client endpoint."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        port, peer = one.getsockname()[1], two.getsockname()[1]
    with (directory / "etcd.log").open("wb") as log:
        process = subprocess.Popen(
            ["etcd", "--data-dir", str(directory / "data"), "--unsafe-no-fsync"]
            + [f"--{name}=http://127.0.0.1:{port}" for name in ("listen-client-urls", "advertise-client-urls")]
            + [f"--{name}=http://127.0.0.1:{peer}" for name in ("listen-peer-urls", "initial-advertise-peer-urls")]
            + [f"--initial-cluster=default=http://127.0.0.1:{peer}"],
            stdout=log,
            stderr=log,
        )
    try:

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until(listens, 20, "etcd listens")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian package etcd-server)")
def test_etcd_compares_and_sets_and_remembers(tmp_path: Path) -> None:
    with etcd(tmp_path) as endpoint:

        async def scenario(store: EtcdStore) -> None:
            await ready(store)
            await check_compare_and_set(store)
            other = EtcdStore([endpoint])
            assert await other.id() == await store.id()
            assert await other.read("broker-a") == await store.read("broker-a")
            await other.close()

        with_etcd(endpoint, scenario)


async def ready(store: EtcdStore) -> None:
    """A fresh etcd elects its own leader first."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await store.id()
            return
        except CoordinatorUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


def test_an_etcd_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def scenario(store: EtcdStore) -> None:
        with pytest.raises(CoordinatorUnavailable, match="etcd does not answer"):
            await store.read("broker-a")

    with_etcd("127.0.0.1:2", scenario)
