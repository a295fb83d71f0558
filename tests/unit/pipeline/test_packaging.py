"""What goes into the archive for executors, and what is refused before one is written."""

from __future__ import annotations

import shlex
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.cli.main import main
from penstock.pipeline.spark import packaging
from penstock.pipeline.spark.packaging import Packed, package
from penstock.proto.errors import ConfigError


class Installed(metadata.Distribution):
    """A package of these requirements, whose files nobody knows."""

    def __init__(self, *requires: str) -> None:
        self._requires = requires

    @property
    def requires(self) -> Any:
        return list(self._requires) or None

    @property
    def metadata(self) -> Any:
        made = Message()
        made["Name"] = "odd"
        return made

    @property
    def files(self) -> Any:
        return None

    def read_text(self, filename: str) -> None:
        """Nothing."""

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def test_requirements_are_followed_without_those_of_other_extras_of_spark_and_of_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {
        "penstock-mq": Installed("a>=1", 'B_two[x]<3 ; extra == "spark"', "trustme; extra == 'dev'", "pyspark>=4"),
        "a": Installed("b.two", 'gone; sys_platform == "win32"', 'plugin; extra == "spark"', "a"),
        "b-two": Installed('c (>=2) ; python_version >= "3"'),
        "c": Installed(),
        "trustme": Installed(),
        "plugin": Installed(),
        "pyspark": Installed(),
    }

    def distribution(name: str) -> metadata.Distribution:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(packaging.metadata, "distribution", distribution)
    assert packaging._packages() == [there["a"], there["b-two"], there["c"]]
    del there["penstock-mq"]
    with pytest.raises(ConfigError, match="penstock-mq is not installed here"):
        packaging._packages()


def test_an_archive_that_executors_could_not_import_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "all.tar.gz"
    file.write_text("the one before")
    monkeypatch.setattr(packaging, "_packages", list)
    with pytest.raises(ConfigError, match="would not do for executors: ModuleNotFoundError: No module named"):
        package(file)
    assert [path.name for path in tmp_path.iterdir()] == ["all.tar.gz"]
    assert file.read_text() == "the one before"
    monkeypatch.setattr(packaging, "_packages", lambda: [Installed()])
    with pytest.raises(ConfigError, match="package odd: its files are not known"):
        package(file)


def test_what_spark_would_not_unpack_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, told in (
        (tmp_path / "all.whl", "Spark unpacks .tar.gz and .tgz"),
        (tmp_path / "of us, both.tgz", "Spark takes the path for an address"),
        (tmp_path / "none" / "all.tgz", "there is no directory"),
    ):
        assert main(["pipeline", "package", str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_the_words_for_a_shell_say_what_the_settings_say() -> None:
    made = Packed(Path("/data/all.tar.gz"), 1, 1, "python3.11")
    words = shlex.split(made.words)
    assert words[::2] == ["--conf"] * 3
    assert dict(word.split("=", 1) for word in words[1::2]) == made.settings
    assert made.settings["spark.archives"] == "/data/all.tar.gz#penstock-packages"
