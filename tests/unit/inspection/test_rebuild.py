"""``rebuild`` makes the files that RocketMQ had made, and a sound store out of every damaged one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.inspection import list_store, rebuild, verify
from penstock.broker.inspection.queue_table import LOST_TOPIC
from penstock.proto.errors import ConfigError
from tests.support import golden

from .trees import damage, unpack, untouched, variants

EQUAL = ("normal", "direct", "direct-crc", "multi-queue", "ha/classic/master", "ha/classic/slave")
"""Sets whose queues and index must come out byte for byte."""


def files(root: Path, *folders: str) -> dict[str, bytes]:
    found = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file():
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


@pytest.mark.parametrize("name", EQUAL)
def test_queues_and_index_are_rocketmqs_byte_for_byte(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path / "old")
    with untouched(root):
        report = rebuild(list_store(root), tmp_path / "new")
    folders = ("commitlog", "consumequeue", "batchconsumequeue")
    assert files(tmp_path / "new", *folders) == files(root, *folders)
    assert list(files(tmp_path / "new", "index").values()) == list(files(root, "index").values())
    assert report.lost_bytes == 0
    assert report.records == len(golden.expected(name)["messages"])


@pytest.mark.parametrize("name", golden.SETS)
def test_what_was_rebuilt_is_sound(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path / "old")
    rebuild(list_store(root), tmp_path / "new")
    found = verify(list_store(tmp_path / "new"))
    assert [str(problem) for problem in found.findings.problems] == []
    assert found.records == len(golden.expected(name)["messages"])
    assert not (tmp_path / "new" / "abort").exists()
    assert files(tmp_path / "new", "config") == files(root, "config")


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant["name"])
def test_every_damaged_store_becomes_a_sound_one(variant: dict[str, Any], tmp_path: Path) -> None:
    root = unpack("crashed", tmp_path / "old")
    damage(root, variant["patch"])
    with untouched(root):
        report = rebuild(list_store(root), tmp_path / "new")
    found = verify(list_store(tmp_path / "new"))
    assert [str(problem) for problem in found.findings.problems] == []
    lost = {"torn-last-record": 1, "five-records-lost": 5, "last-log-file-missing": 26}
    lost |= {"bad-body-near-end": 1, "bad-body-early": 1}
    assert report.records == 472 - lost.get(variant["name"], 0)
    assert report.keys == 2 * report.records


@pytest.mark.parametrize("size", [91, 95, 120, 574, 3 << 20])
def test_lost_bytes_of_any_size_are_filled(size: int, tmp_path: Path) -> None:
    from penstock.broker.inspection.rebuild import _Rebuild
    from penstock.proto.record.batch import RecordBatch

    store = list_store(unpack("direct", tmp_path / "old"))
    made = _Rebuild(store, tmp_path, tmp_path, None)._filling(1000, 1000 + size, 1 << 30, _Old())  # type: ignore[arg-type]
    batch = RecordBatch(made, check_crc=True)
    assert len(made) == size
    assert all(LOST_TOPIC.startswith(batch.topic(i)) for i in range(len(batch)))
    assert batch.rows["physical_offset"].tolist() == [1000 + int(at) for at in batch.rows["position"]]


class _Old:
    last_time = 5


def test_a_missing_log_file_becomes_one_blank_record(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path / "old")
    damage(root, [{"file": "commitlog/00000000000000032768", "delete": True}])
    report = rebuild(list_store(root), tmp_path / "new")
    assert (tmp_path / "new" / "commitlog" / "00000000000000032768").read_bytes()[:8].hex() == "00004000cbd43194"
    assert report.lost_bytes == 16384
    assert verify(list_store(tmp_path / "new")).records == report.records


@pytest.mark.parametrize("into", ["old", "old/new", ".", "file", "full", "link/new"])
def test_no_store_is_made_where_it_could_do_harm(into: str, tmp_path: Path) -> None:
    root = unpack("direct", tmp_path / "old")
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("")
    (tmp_path / "link").symlink_to(root)
    with untouched(tmp_path), pytest.raises(ConfigError):
        rebuild(list_store(root), tmp_path / into)


def test_nothing_is_left_of_a_rebuild_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.broker.inspection import queue_writer
    from penstock.proto.errors import DiskFull

    root = unpack("direct", tmp_path / "old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(queue_writer.os, "pwrite", full)
    with pytest.raises(DiskFull, match="No space left on device"):
        rebuild(list_store(root), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
