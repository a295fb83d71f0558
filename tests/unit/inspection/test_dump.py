"""``dump`` names every field of every kind of file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.inspection import dump
from penstock.inspection.annotations import Item, lines
from penstock.proto.errors import InvalidArgument
from tests.support import golden
from tests.unit.inspection.trees import unpack


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("direct", tmp_path_factory.mktemp("direct"))


def fields(item: Item) -> dict[str, object]:
    return {field.name: field.value for field in item.fields}


def test_the_records_of_all_sets_are_laid_out_to_the_last_byte(tmp_path: Path) -> None:
    for name in ("direct", "normal"):
        for start, data in golden.log_files(name).items():
            path = tmp_path / "commitlog" / f"{start:020d}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            messages = [
                m for m in golden.expected(name)["messages"] if start <= m["physicalOffset"] < start + len(data)
            ]
            made = dump(path, count=10_000)
            items = list(made.items)
            assert made.kind == "log"
            records = [item for item in items if item.what == "record"]
            assert [item.at + start for item in records] == [m["physicalOffset"] for m in messages]
            for item, message in zip(records, messages, strict=True):
                found = fields(item)
                assert (found["TOPIC"], found["QUEUEOFFSET"]) == (message["topic"], message["queueOffset"])
                assert found["PROPERTIES"] == message["properties"]
                ends = [field.at + len(field.data) for field in item.fields if field.name != "BODY"]
                assert max(ends) == item.at + item.size
            assert items[-1].what in ("record", "blank that ends the file")


def test_an_offset_inside_a_record_shows_that_record(direct: Path) -> None:
    (item,) = dump(direct / "commitlog" / "00000000000000000000", at=500).items
    assert (item.what, item.at) == ("record", 376)


def test_damaged_bytes_are_shown_as_far_as_they_make_sense(direct: Path, tmp_path: Path) -> None:
    data = bytearray((direct / "commitlog" / "00000000000000000000").read_bytes())
    data[380:384] = b"\x00\x01\x02\x03"
    path = tmp_path / "commitlog" / "00000000000000000000"
    path.parent.mkdir()
    path.write_bytes(data)
    (item,) = dump(path, at=376).items
    assert item.what == "no record"
    assert "0x00010203 (of no known version)" in list(lines(item))[2]


def test_entries_of_all_kinds_have_their_fields(direct: Path, tmp_path: Path) -> None:
    (entry,) = dump(direct / "consumequeue" / "LateStart" / "0" / "00000000000000000800", at=145).items
    assert (entry.what, fields(entry)) == (
        "queue entry 47",
        {"physicalOffset": 93666, "size": 116, "tagsCode": 3314342},
    )
    (unit,) = dump(direct / "batchconsumequeue" / "InnerBatch" / "0" / "00000000000000000000", at=50).items
    assert fields(unit)["msgBaseOffset"] == 1
    assert fields(unit)["batchSize"] == 3
    (checkpoint,) = dump(direct / "checkpoint").items
    assert fields(checkpoint)["logicsMsgTimestamp"] == "1700000227500 (2023-11-14T22:17:07.500+00:00)"
    extended = unpack("direct-ext", tmp_path / "ext")
    first, second = list(dump(extended / "consumequeue_ext" / "Batch" / "0" / f"{0:020d}", count=2).items)
    assert (fields(first)["size"], fields(second)["bitMapSize"]) == (20, 7)


def test_an_index_is_shown_with_header_slots_and_entries(direct: Path) -> None:
    raw = golden.expected("direct")["rawIndex"][0]
    path = direct / "index" / raw["file"]
    items = list(dump(path, count=21).items)
    assert items[0].what == "index header"
    assert fields(items[0])["indexCount"] == raw["indexCount"]
    assert sum(item.what.startswith("hash slot") for item in items) == 10
    entries = [list(fields(item).values()) for item in items if item.what.startswith("index entry")]
    assert entries == raw["entries"][: len(entries)]
    assert len(entries) == 10
    (last,) = dump(path, at=40 + 4 * 50 + 20 * 119).items
    assert (last.what, list(fields(last).values())) == ("index entry 119", raw["entries"][118])


def test_the_timer_log_is_shown(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path, only=["timerlog"])
    items = list(dump(root / "timerlog" / f"{0:020d}").items)
    assert all(fields(item)["size"] == 52 for item in items)


def test_the_kind_follows_from_the_content_elsewhere(direct: Path, tmp_path: Path) -> None:
    for source, kind in (
        ("commitlog/00000000000000000000", "log"),
        ("consumequeue/Fil/0/00000000000000000000", "queue"),
        ("index/20261121010236880", "index"),
        ("checkpoint", "checkpoint"),
    ):
        path = tmp_path / Path(source).name
        path.write_bytes((direct / source).read_bytes())
        assert dump(path).kind == kind
        path.unlink()
    (tmp_path / "letter").write_text("dear reader")
    with pytest.raises(InvalidArgument, match="neither folder nor content tell what it is"):
        dump(tmp_path / "letter")


def test_a_position_behind_the_file_is_refused(direct: Path) -> None:
    with pytest.raises(InvalidArgument, match="at 9999999: the file has 4096 bytes"):
        dump(direct / "checkpoint", at=9_999_999)
