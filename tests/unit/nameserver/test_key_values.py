"""The key-value file: durable, whole, and its damage is named."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.nameserver.key_values import NAME_LENGTH_MAX, VALUE_LENGTH_MAX, KeyValues
from penstock.proto.errors import ConfigError, Corrupt, InvalidArgument, KeyNotFound, StorageError
from penstock.runtime import whole_files


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_the_file_has_rocketmqs_shape(tmp_path: Path) -> None:
    path = tmp_path / "made" / "kvConfig.json"

    async def scenario() -> None:
        values = KeyValues.open(path)
        await values.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4;broker-b:4")
        await values.put("other", "schlüssel", "wert")

    run(scenario())
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4;broker-b:4"}, "other": {"schlüssel": "wert"}}
    }
    assert os.listdir(path.parent) == ["kvConfig.json"]


def test_what_is_deleted_is_gone_and_so_is_its_empty_namespace(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"

    async def scenario() -> None:
        values = KeyValues.open(path)
        await values.put("n", "k", "v")
        await values.delete("n", "k")
        await values.delete("n", "k")
        with pytest.raises(KeyNotFound, match="namespace 'n' has no key 'k'"):
            values.get("n", "k")

    run(scenario())
    assert json.loads(path.read_text()) == {"configTable": {}}


def test_concurrent_changes_all_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"

    async def scenario() -> None:
        values = KeyValues.open(path)
        await asyncio.gather(*(values.put("n", f"k{number}", "v") for number in range(20)))
        assert len(values.list("n")) == len(values.list("")) == 20

    run(scenario())
    assert len(json.loads(path.read_text())["configTable"]["n"]) == 20


def test_a_change_that_cannot_be_written_is_refused_and_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        values = KeyValues.open(tmp_path / "kv.json")
        await values.put("n", "k", "old")

        def full(file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="No space left on device; nothing was changed"):
            await values.put("n", "k", "new")
        assert values.get("n", "k") == "old"

    run(scenario())
    assert os.listdir(tmp_path) == ["kv.json"]
    assert KeyValues.open(tmp_path / "kv.json").get("n", "k") == "old"


def test_what_is_put_after_a_change_that_may_be_in_the_file_is_written_though_it_is_the_old_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kv.json"

    def refuses(directory: Path) -> None:
        raise OSError(5, "Input/output error")

    async def scenario() -> None:
        values = KeyValues.open(path)
        await values.put("n", "k", "old")
        with monkeypatch.context() as patch:
            patch.setattr(whole_files, "sync_directory", refuses)  # the new file has its name already
            with pytest.raises(StorageError, match="the next start may find the change"):
                await values.put("n", "k", "new")
        assert values.get("n", "k") == "old"
        await values.put("n", "k", "old")

    run(scenario())
    assert KeyValues.open(path).get("n", "k") == "old"


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [
        ("", "k", "v"),
        ("n", " ", "v"),
        ("n", "k" * (NAME_LENGTH_MAX + 1), "v"),
        ("n", "k", "v" * (VALUE_LENGTH_MAX + 1)),
    ],
)
def test_names_and_values_have_limits(tmp_path: Path, namespace: str, key: str, value: str) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidArgument):
            await KeyValues.open(tmp_path / "kv.json").put(namespace, key, value)

    run(scenario())
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"configTable": []}', b'{"configTable": {"n": {"k": 1}}}', b"\xff\xfe\x00",
     b'{"configTable": {"n": {"k": "\\ud800"}}}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_is_named_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=r"kv\.json: key-value configuration is damaged"):
        KeyValues.open(path)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="see kvConfigPath"):
        KeyValues.open(tmp_path)


def test_a_place_where_nothing_can_be_written_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"kvConfigPath .*Not a directory"):
        KeyValues.open(tmp_path / "file" / "kv.json")
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write everywhere
    with pytest.raises(ConfigError, match=rf"kvConfigPath .*directory {tmp_path} is not writable"):
        KeyValues.open(tmp_path / "new" / "kv.json")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(TEXT.filter(str.strip), TEXT, max_size=5))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, entries: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("kv") / "kv.json"

    async def scenario() -> None:
        values = KeyValues.open(path)
        for key, value in entries.items():
            await values.put("n", key, value)

    run(scenario())
    read = KeyValues.open(path)
    assert {one.key: one.value for one in read.list("n")} == entries
