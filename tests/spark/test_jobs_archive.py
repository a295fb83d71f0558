"""What an archive refuses to take for what it has, and whether its check and its readers see spoilt files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.spark.generate import generate
from penstock.formats.record.layout import Record, SysFlag
from penstock.pipeline.jobs import query
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.lake.lake import Lake
from penstock.proto.errors import ConfigError, Corrupt
from tests.unit.pipeline.stores.test_store_splits import write_log

SEGMENT_BYTES = 65_536


def make(root: Path, records: int = 700, body_bytes: int = 100) -> str:
    generate(root, records=records, body_bytes=body_bytes, queues=3, segment_bytes=SEGMENT_BYTES)
    return str(root)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two stores in folders of the same name, whose log files begin at the same positions."""
    folder = tmp_path_factory.mktemp("stores")
    return make(folder / "one" / "broker"), make(folder / "two" / "broker", body_bytes=101)


def test_two_stores_of_one_broker_name_are_refused(spark: Any, stores: tuple[str, str], tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for store in (stores, (stores[0], stores[0])):
        with pytest.raises(ConfigError, match="would both be broker 'broker': set broker_name"):
            archive.run(spark, archive.Config(store=store, lake=str(lake)))
    with pytest.raises(ConfigError, match="would both be broker 'x'"):
        archive.run(spark, archive.Config(store=stores, lake=str(lake), broker_name=("x", "x")))
    assert not lake.exists()


def test_a_store_is_not_archived_into_the_lake_of_another_one_of_its_name(
    spark: Any, stores: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    told: list[object] = []
    monkeypatch.setattr(archive, "set_watermarks", lambda *given: told.append(given))
    monkeypatch.setattr(archive, "require_groups", lambda *given: None)
    monkeypatch.setattr(archive, "archive_marks", lambda *given: {})
    first, second = (archive.Config(store=(store,), lake=lake.root, namesrv="there") for store in stores)
    archive.run(spark, first)
    before = {path: path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file()}
    del told[:]
    with pytest.raises(ConfigError) as caught:
        archive.run(spark, second)
    for part in (
        lake.root,
        "log file 00000000000000000000 of broker broker",
        stores[1],
        "set broker_name to another name",
        "another lake",
    ):
        assert part in str(caught.value)
    assert told == []
    assert {path: path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file()} == before
    report = archive.run(spark, first)
    assert (report.figures["segments"], report.figures["skipped_segments"]) == (0, len(lake.entries()) + 1)
    both = archive.Config(store=stores, lake=lake.root, broker_name=("broker", "other"))
    assert archive.run(spark, both).figures["rows"] > 0


def test_another_log_with_the_same_first_records_is_told(spark: Any, stores: tuple[str, str], tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    archive.run(spark, archive.Config(store=stores[:1], lake=lake))
    forked = tmp_path / "broker"
    shutil.copytree(stores[0], forked)
    path = forked / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    other = Path(stores[1], "commitlog", f"{0:020d}").read_bytes()
    content[-4096:] = other[-4096:]
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is of another log than"):
        archive.run(spark, archive.Config(store=(str(forked),), lake=lake))
    wide = tmp_path / "wide" / "broker"
    generate(wide, records=2000, body_bytes=100, queues=3, segment_bytes=SEGMENT_BYTES // 2 * 3)
    (wide / "commitlog" / f"{0:020d}").unlink()  # it has no log file in common with the lake
    with pytest.raises(ConfigError, match="is of another log than"):
        archive.run(spark, archive.Config(store=(str(wide),), lake=lake))


def test_a_replica_that_follows_is_compared_as_far_as_it_has_the_log(
    spark: Any, stores: tuple[str, str], tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    archive.run(spark, archive.Config(store=stores[:1], lake=lake, tail=True))
    replica = tmp_path / "broker"
    shutil.copytree(stores[0], replica)
    newest = sorted((replica / "commitlog").iterdir())
    for path in newest[1:]:
        path.unlink()
    content = newest[0].read_bytes()
    newest[0].write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    (replica / "abort").touch()  # as of a store that is open
    found = archive.run(spark, archive.Config(store=(str(replica),), lake=lake, up_to="end"))
    assert (found.ok, found.figures["segments"]) == (True, 0)


def test_a_tail_is_replaced_by_its_own_log_only(spark: Any, tmp_path: Path) -> None:
    small, same, other = (
        make(tmp_path / name / "broker", records, size)
        for name, records, size in (("a", 100, 100), ("b", 200, 100), ("c", 200, 101))
    )
    lake = str(tmp_path / "lake")

    def rows(store: str) -> int:
        return int(archive.run(spark, archive.Config(store=(store,), lake=lake, tail=True)).figures["rows"])

    assert rows(small) == 100
    with pytest.raises(ConfigError, match="is of another log than"):
        rows(other)
    assert rows(same) == 200
    assert query.run(spark, query.Config(lake=lake)).figures["messages"] == 200


def test_a_lake_whose_path_looks_like_a_pattern_is_searched(
    spark: Any, stores: tuple[str, str], tmp_path: Path
) -> None:
    lake = Lake(f"{tmp_path}/lake[1]{{a,b}}* %é")
    rows = archive.run(spark, archive.Config(store=stores[:1], lake=lake.root)).figures["rows"]
    assert query.run(spark, query.Config(lake=lake.root)).figures["messages"] == rows


def test_a_body_that_cannot_be_decompressed_is_kept_and_found(spark: Any, tmp_path: Path) -> None:
    records = [Record(topic="t", body=b"no zlib", sys_flag=SysFlag.COMPRESSED), Record(topic="t", body=b"plain")]
    write_log(tmp_path / "store", records)
    lake = str(tmp_path / "lake")
    store = (str(tmp_path / "store"),)
    report = archive.run(spark, archive.Config(store=store, lake=lake, tail=True, on_corrupt="skip"))
    assert (report.figures["rows"], report.figures["damages"]) == (2, 1)
    (table,) = query.run(spark, query.Config(lake=lake, topic="t")).tables
    bodies = [row[table.columns.index("body")] for row in table.rows]
    assert bodies == ["no zlib", "plain"]


def test_the_check_names_files_of_the_lake_that_are_not_whole(
    spark: Any, stores: tuple[str, str], tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    config = archive.Config(store=stores[:1], lake=lake.root, check=True)
    archive.run(spark, archive.Config(store=stores[:1], lake=lake.root))
    paths = [Path(lake.path, "messages", file.name) for entry in lake.entries() for file in entry.files]
    report = archive.run(spark, config)
    assert report.ok, report.problems
    assert report.figures["checked_files"] == len(paths) >= 2
    content = paths[0].read_bytes()

    def told() -> list[str]:
        report = archive.run(spark, config)
        assert not report.ok
        return [problem["problem"] for problem in report.problems]

    paths[0].write_bytes(flipped(content))
    (problem,) = told()
    assert problem.startswith(f"{paths[0]}: the file has the checksum")
    paths[0].write_bytes(content[:-1])
    assert told() == [f"{paths[0]}: the file has {len(content) - 1} bytes where the table says {len(content)}"]
    paths[0].unlink()
    assert told() == [f"{paths[0]}: the file is missing"]


def test_a_query_names_a_file_that_is_missing_or_unreadable(
    spark: Any, stores: tuple[str, str], tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    archive.run(spark, archive.Config(store=stores[:1], lake=lake.root))
    path = Path(lake.path, "messages", lake.entries()[0].files[0].name)
    content = path.read_bytes()
    # Some bits change messages and no structure: only the pages' checksums tell.
    for spoilt in (flipped(content, 1), flipped(content, 64), b"x" * len(content)):
        path.write_bytes(spoilt)
        with pytest.raises(Corrupt, match=f"{path}: Spark cannot read it"):
            query.run(spark, query.Config(lake=lake.root))
    path.write_bytes(content[:-1])
    with pytest.raises(Corrupt, match=f"{path}: the file has {len(content) - 1} bytes"):
        query.run(spark, query.Config(lake=lake.root))
    path.unlink()
    with pytest.raises(Corrupt, match=f"{path}: the file is missing"):
        query.run(spark, query.Config(lake=lake.root))
    with pytest.raises(ConfigError, match=r"output is .* which exists: name a directory that does not"):
        query.run(spark, query.Config(lake=lake.root, output=str(tmp_path)))


def flipped(content: bytes, count: int = 64) -> bytes:
    """A file with some bits of its pages turned over."""
    half = len(content) // 4
    return content[:half] + bytes(byte ^ 0x10 for byte in content[half : half + count]) + content[half + count :]
