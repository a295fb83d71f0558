"""What the command line refuses before Spark starts, for any job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("pyspark")

from penstock.cli.commands.pipeline import pipeline
from penstock.pipeline.catalogue import JOBS, load_job
from penstock.pipeline.jobs.framework.report import Report, require_writable
from penstock.pipeline.options import made
from penstock.proto.errors import ConfigError, StorageError
from tests.support import golden

WITH_STORES = sorted(name for name in JOBS if "store" in load_job(name).Config.__dataclass_fields__)


@pytest.mark.parametrize("job", WITH_STORES)
@pytest.mark.parametrize("store", ["", ",", ()])
def test_an_empty_list_of_stores_is_refused_by_every_job(job: str, store: Any) -> None:
    config = load_job(job).Config
    if store in (",", ()) and (config.__annotations__["store"] == "str" or (store == () and _is_optional(config))):
        return
    needed = {name: "x" for name in ("lake", "into", "history") if name in config.__dataclass_fields__}
    with pytest.raises(ConfigError, match=f"{job}: store is empty: name "):
        made(config, needed | {"store": store}, job)


def _is_optional(config: Any) -> bool:
    return config.__dataclass_fields__["store"].default == ()


def test_an_empty_list_of_topics_is_not_all_topics(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stats: topics is empty: name only these topics, or leave it out"):
        made(load_job("stats").Config, {"store": "a", "topics": ""}, "stats")
    assert made(load_job("stats").Config, {"store": " a, b", "topics": ()}, "stats").store == ("a", "b")


def test_a_report_that_cannot_be_written_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden.unpack("direct", tmp_path / "store", only=("commitlog",))

    def started(*args: object, **more: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.pipeline.spark.sessions.session", started)
    context = click.Context(pipeline)
    command = pipeline.get_command(context, "stats")
    assert command is not None
    path = tmp_path / "absent" / "r.html"
    with pytest.raises(ConfigError, match=f"report {path}: there is no directory {path.parent}: make it, or name"):
        command.main(["--store", str(root), "--report", str(path)], standalone_mode=False)


def test_a_report_goes_into_the_pipe_that_has_its_name(tmp_path: Path) -> None:
    pipe = tmp_path / "r.json"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        Report("stats", {}).write(pipe)
        if not pipe.is_fifo():
            reader.kill()
        assert '"stats"' in reader.communicate(timeout=30)[0]


def test_a_reports_place_is_a_file_in_a_writable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "r.json")
    require_writable(Path("r.json"))
    with pytest.raises(ConfigError, match="is a directory: name a file in it"):
        require_writable(tmp_path)
    for name in ("r.pdf", "r"):
        with pytest.raises(ConfigError, match=r"page \(.html\) or a document \(.json\).* name r.html or r.json"):
            require_writable(tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the report is not written"):
        Report("stats", {}).write(tmp_path / "file" / "r.json")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="is not writable"):
        require_writable(tmp_path / "r.json")
