"""Whether a session will be on this machine, told before Java runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.sessions import _is_local, _master_elsewhere


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_where_nothing_names_a_master_it_is_this_machine() -> None:
    assert _is_local(_master_elsewhere({}))


def test_settings_and_surroundings_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MASTER", "spark://b:7077")
    assert _master_elsewhere({}) == "spark://b:7077"
    for line in ("spark.master spark://a:7077", " spark.master=spark://a:7077", "spark.master = spark://a:7077"):
        (tmp_path / "spark-defaults.conf").write_text(f"# spark.master local\nspark.masterless x\n{line}\n")
        assert _master_elsewhere({}) == "spark://a:7077"
    assert _master_elsewhere({"spark.master": "local[3]"}) == "local[3]"


@pytest.mark.parametrize("name", ["PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"])
def test_where_java_is_started_with_words_of_its_own_nothing_is_taken_for_granted(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert not _is_local(_master_elsewhere({}))


def test_what_is_local() -> None:
    assert all(_is_local(each) for each in ("local", "local[2]", "local[*]"))
    assert not any(_is_local(each) for each in (None, "local-cluster[2,1,768]", "spark://a:7077", "yarn"))
