"""What the pipelines need and do not find is named before anything is started."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.requirements import require_java, require_spark
from penstock.pipeline.topics.options import source_options
from penstock.proto.errors import ConfigError, NameserverUnavailable
from tests.support.cluster.cluster import free_ports


def java(home: Path, says: str) -> None:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


def test_an_old_or_missing_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path / "eight", 'openjdk version "1.8.0_302"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "eight"))
    with pytest.raises(ConfigError, match="this is Java 8: set JAVA_HOME"):
        require_java()
    for home, says in (("old", 'openjdk version "11.0.2" 2019-01-15'), ("new", 'openjdk version "21.0.1" 2023-10-17')):
        java(tmp_path / home, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ConfigError, match="needs Java 17 or newer, this is Java 11: set JAVA_HOME"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there is none: install default-jre-headless, or set JAVA_HOME"):
        require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is none"):
        require_java()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without_pyspark(name: str, package: str | None = None) -> Any:
        return None if name == "pyspark" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_pyspark)
    with pytest.raises(ConfigError, match=r"need the package pyspark: pip install 'penstock-mq\[spark\]'"):
        require_spark()


WITHOUT_SPARK = """
import importlib.machinery, sys
found = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in ("pyspark", "pyarrow", "pandas") else found(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""


def without_spark(code: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, in which the packages of the extra are not found."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK + code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    "code",
    [
        "from penstock.pipeline.jobs import archive",
        "import penstock.pipeline.jobs.framework.report",
        "from penstock.pipeline.topics.read.progress import attach",
        "from penstock.pipeline.stores.directory import list_store",
        "from penstock.pipeline.jobs.lag.sampling import take_sample",
        "import pyspark_penstock",
        "import pyspark_penstock_store",
        "import penstock.pipeline; penstock.pipeline.session",
    ],
)
def test_whoever_imports_a_part_without_the_packages_is_told_the_extra(code: str) -> None:
    ended = without_spark(code)
    assert ended.stderr.splitlines()[-1] == (
        "penstock.proto.errors.ConfigError: pipelines need the package pyspark: pip install 'penstock-mq[spark]'"
    )


def test_help_needs_no_packages() -> None:
    for words, code, text in ((["--help"], 0, "archive-topic"), (["stats"], 2, "pip install 'penstock-mq[spark]'")):
        ended = without_spark(f"from penstock.cli.main import main; sys.exit(main(['pipeline', *{words!r}]))")
        assert ended.returncode == code, ended.stderr
        assert text in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"pyarrow": "23.0.1"}.__getitem__)
    with pytest.raises(ConfigError, match=r"need pyarrow 24 or newer, this is 23\.0\.1"):
        require_spark()


def test_a_cluster_that_is_not_there_is_named() -> None:
    from penstock.pipeline.topics.cluster import Cluster
    from penstock.pipeline.topics.read.starting import starting_offsets

    (port,) = free_ports(1)
    options = source_options({"nameServer": f"127.0.0.1:{port}", "subscribe": "orders"}, streaming=False)
    cluster = Cluster(options.name_server)
    with pytest.raises(NameserverUnavailable, match=f"127.0.0.1:{port}"):
        starting_offsets(cluster, options, timeout_s=0.5)
    cluster.calls.close()
