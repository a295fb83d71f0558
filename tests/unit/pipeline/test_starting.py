"""Spark's home on this machine, and the classes that are kept in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.formats.directory import COMMIT_LOG
from penstock.pipeline.jobs.framework.reading import LITTLE_BYTES_MAX, reads_little
from penstock.pipeline.spark.starting import java_options, keep_classes, spark_home


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("penstock.pipeline.spark.starting.java_program", lambda: sys.executable)
    found = spark_home()
    assert found is not None
    return found


def test_the_home_has_sparks_programs_and_none_of_its_python_archives(home: Path) -> None:
    assert (home / "bin" / "spark-submit").exists()
    assert any((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()
    assert spark_home() == home


@pytest.mark.parametrize("name", ["SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_who_names_a_home_or_another_python_starts_as_spark_does(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/elsewhere")
    assert spark_home() is None


def test_where_nothing_can_be_kept_spark_starts_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert spark_home() is None


def test_classes_that_are_kept_are_used_and_others_are_written_by_short_jobs_alone(home: Path) -> None:
    assert java_options(home, keeps=False) == ""
    assert f"-XX:ArchiveClassesAtExit={home}/{os.getpid()}.draft" in java_options(home, keeps=True)
    (home / "classes.jsa").touch()
    assert f"-XX:SharedArchiveFile={home}/classes.jsa" in java_options(home, keeps=True)


def test_drafts_of_processes_that_have_ended_go(home: Path) -> None:
    dead = home / "4194305.draft"  # above the largest number of a process
    dead.touch()
    java_options(home, keeps=True)
    assert [path.name for path in home.glob("*.draft")] == [f"{os.getpid()}.draft"]


class _Process:
    """A Java that leaves these bytes in its draft."""

    def __init__(self, draft: Path, left: bytes, status: int) -> None:
        self.stdin = SimpleNamespace(close=lambda: draft.write_bytes(left))
        self.wait = lambda _: status
        self.kill = lambda: None


@pytest.mark.parametrize(("left", "status", "is_kept"), [(b"classes", 0, True), (b"", 0, False), (b"half", 1, False)])
def test_only_a_whole_archive_is_kept(
    monkeypatch: pytest.MonkeyPatch, home: Path, left: bytes, status: int, is_kept: bool
) -> None:
    java_options(home, keeps=True)
    process = _Process(home / f"{os.getpid()}.draft", left, status)
    gateway = SimpleNamespace(proc=process, shutdown=lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", gateway)
    monkeypatch.setattr("pyspark.SparkContext._jvm", None)
    (home.parent / "gone").mkdir()
    told: list[str] = []
    keep_classes(told.append)
    assert len(told) == 1
    assert (home / "classes.jsa").exists() == is_kept
    assert not list(home.glob("*.draft"))
    assert not (home.parent / "gone").exists()
    keep_classes(told.append)
    assert len(told) == 1


def test_a_job_is_short_where_all_that_it_reads_is_small_and_here(tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    (store / COMMIT_LOG).mkdir(parents=True)
    (store / COMMIT_LOG / "0").write_bytes(b"x" * 5000)
    lake.mkdir()
    assert reads_little(SimpleNamespace(store=(str(store),), lake=str(lake), replica=None, topics=()))
    assert not reads_little(SimpleNamespace(namesrv="here:9876"))
    assert not reads_little(SimpleNamespace(namesrv="here:9876", topics=("t",), lake=str(lake)))
    assert not reads_little(SimpleNamespace(store=(str(store),), lake="s3://bucket/lake"))
    with (store / COMMIT_LOG / "1").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, LITTLE_BYTES_MAX)
    assert reads_little(SimpleNamespace(store=(str(store),)))
    (store / COMMIT_LOG / "2").write_bytes(b"x" * LITTLE_BYTES_MAX)
    assert not reads_little(SimpleNamespace(store=(str(tmp_path / "st*"),)))
