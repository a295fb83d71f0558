"""``rebuild`` makes the files that RocketMQ had made, and a sound store out of every damaged one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.formats.record.layout import decode_record
from penstock.inspection import list_store, rebuild, verify
from penstock.proto.errors import ConfigError
from penstock.proto.names import LOST_TOPIC
from tests.support import golden
from tests.support.golden import damage, variants
from tests.unit.inspection.trees import unpack, untouched

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
    from penstock.formats.record.reading import RecordBatch
    from penstock.inspection.rebuild import _Rebuild

    store = list_store(unpack("direct", tmp_path / "old"))
    made = _Rebuild(store, tmp_path, tmp_path, None)._filling(1000, 1000 + size, 1 << 30, _Old())  # type: ignore[arg-type]
    batch = RecordBatch(made, check_crc=True)
    assert len(made) == size
    assert all(LOST_TOPIC.startswith(batch.topic(i)) for i in range(len(batch)))
    assert batch.rows["physical_offset"].tolist() == [1000 + int(at) for at in batch.rows["position"]]


class _Old:
    last_time = 5


def test_a_missing_log_file_becomes_one_marker_and_a_blank_record(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path / "old")
    damage(root, [{"file": "commitlog/00000000000000032768", "delete": True}])
    report = rebuild(list_store(root), tmp_path / "new")
    made = (tmp_path / "new" / "commitlog" / "00000000000000032768").read_bytes()
    marker = decode_record(made, check_crc=True)
    assert (marker.topic, marker.sys_flag, marker.physical_offset) == (LOST_TOPIC, 12, 32768)
    assert made[112:120].hex() == f"{16384 - 112:08x}cbd43194"
    assert report.lost_bytes == 16384
    assert verify(list_store(tmp_path / "new")).records == report.records + 1  # with the marker


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
    from penstock.inspection.queues import writer as queue_writer
    from penstock.proto.errors import DiskFull

    root = unpack("direct", tmp_path / "old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(queue_writer.os, "pwrite", full)
    with pytest.raises(DiskFull, match="No space left on device"):
        rebuild(list_store(root), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


HEADERS = {
    "a topic that leads out": [{"file": "commitlog/00000000000000000000", "offset": 91, "hex": b"../..".hex()}],
    "a topic with a zero": [{"file": "commitlog/00000000000000000000", "offset": 95, "hex": "00"}],
    "a topic that is no text": [{"file": "commitlog/00000000000000000000", "offset": 95, "hex": "fffe"}],
    "a queue offset ahead": [{"file": "commitlog/00000000000000131072", "offset": 20, "hex": "00000000000000ff"}],
    "a queue offset behind": [{"file": "commitlog/00000000000000131072", "offset": 20, "hex": "8000000000000001"}],
    "a negative queue id": [{"file": "commitlog/00000000000000131072", "offset": 12, "hex": "80"}],
}
"""Damage that no checksum covers."""


@pytest.mark.parametrize("name", HEADERS)
def test_a_damaged_header_neither_leads_astray_nor_stays(name: str, tmp_path: Path) -> None:
    root = unpack("multi-queue", tmp_path / "store" / "old")
    damage(root, HEADERS[name])
    assert not verify(list_store(root)).findings.ok
    with untouched(root):
        report = rebuild(list_store(root), tmp_path / "store" / "new")
    assert report.records in (639, 640)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["new", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    if "no text" not in name:  # which can name a directory, as strange as it is
        assert report.records == 639
        assert verify(list_store(tmp_path / "store" / "new")).findings.ok


def test_random_damage_never_ends_a_rebuild(tmp_path: Path) -> None:
    chosen = random.Random(11)
    root = unpack("direct", tmp_path / "old")
    logs = sorted((root / "commitlog").iterdir())
    for number in range(30):
        path = chosen.choice(logs)
        kept = path.read_bytes()
        at, size = chosen.randrange(len(kept)), chosen.choice([1, 8, 300, 5000])
        data = chosen.randbytes(size) if chosen.random() < 0.5 else bytes(size)
        path.write_bytes((kept[:at] + data + kept[at + size :])[: len(kept)])
        report = rebuild(list_store(root), tmp_path / f"new{number}")
        found = verify(list_store(tmp_path / f"new{number}"))
        assert found.records >= report.records
        path.write_bytes(kept)
