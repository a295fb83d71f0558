"""Whether a session will be on this machine, told before Java runs."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from penstock.pipeline.spark.registration import PLANNER_VARIABLES, SOURCES, register
from penstock.pipeline.spark.sessions import (
    CONNECT_PORT,
    _is_local,
    _master_elsewhere,
    _start_of_java,
    require_place,
    session,
)
from penstock.proto.errors import ConfigError
from penstock.runtime.memory import KEEPING_VARIABLES
from tests.support.cluster.cluster import free_ports


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "MASTER",
        "SPARK_REMOTE",
        "grpc_proxy",
        "https_proxy",
        "http_proxy",
        "PYSPARK_SUBMIT_ARGS",
        "PYSPARK_GATEWAY_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_java_keeps_large_buffers_as_far_as_nobody_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEEPING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    before = dict(os.environ)
    with _start_of_java(is_short=False):
        found = {name: os.environ[name] for name in KEEPING_VARIABLES}
    assert found == {**KEEPING_VARIABLES, "MALLOC_ARENA_MAX": "4"}
    assert dict(os.environ) == before


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


@pytest.mark.parametrize(("conf", "python"), [({}, sys.executable), ({"spark.pyspark.python": "python3"}, "python3")])
def test_workers_have_this_python_or_the_one_that_settings_name(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], python: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "gone behind the test")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr("penstock.pipeline.spark.sessions.require_java", lambda: None)

    def found() -> None:
        raise LookupError(os.environ["PYSPARK_PYTHON"])

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", found)
    with pytest.raises(LookupError, match=f"^{python}$"):
        session(conf=conf)


def test_what_is_local() -> None:
    assert all(_is_local(each) for each in ("local", "local[2]", "local[*]"))
    assert not any(_is_local(each) for each in (None, "local-cluster[2,1,768]", "spark://a:7077", "yarn"))


@pytest.mark.parametrize("master", ["foo", "Local", "local[", "local[x]", "localhost:7077", ""])
def test_a_master_that_is_none_is_named(master: str) -> None:
    with pytest.raises(ConfigError, match=r"master is .*: expected local, local\[4\]"):
        require_place(master, None)
    with pytest.raises(ConfigError, match="master is "):
        session(conf={"spark.master": master})


def test_masters_that_spark_knows_pass() -> None:
    named = ("local", "local[4]", "local[*]", "local[2,3]", "local[*, 4]", "local-cluster[2,1,768]")
    for master in (None, *named, "spark://a:7077,b:7077", "k8s://https://host:443", "yarn"):
        require_place(master, None)


def test_master_and_connect_server_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"master is 'local\[2\]' and remote 'sc://host': .* name one of them"):
        require_place("local[2]", "sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    with pytest.raises(ConfigError, match=r"master is 'local' and remote 'sc://elsewhere'"):
        session(master="local")


@pytest.mark.parametrize("remote", ["127.0.0.1:1", "http://host", "sc://", "sc://host:port", "sc://host:99999"])
def test_a_connect_server_that_cannot_be_one_is_named(remote: str) -> None:
    with pytest.raises(ConfigError, match=rf"remote is '{remote}': expected a Connect server as sc://host"):
        require_place(None, remote)


def test_a_connect_server_that_does_not_answer_is_named_at_once() -> None:
    (port,) = free_ports(1)
    with pytest.raises(ConfigError, match=rf"no Connect server answers at 127.0.0.1:{port} .*refused"):
        session(remote=f"sc://127.0.0.1:{port}/;user_id=x")


def test_a_connect_server_that_listens_or_is_behind_a_proxy_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_place(None, f"sc://127.0.0.1:{server.getsockname()[1]}")
    require_place(None, "local[2]")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    require_place(None, f"sc://127.0.0.1:{free_ports(1)[0]}")
    assert CONNECT_PORT == 15002


def test_threads_register_the_sources_one_after_the_other() -> None:
    """What one does to the session's environment meanwhile is not for another to find, nor to take away."""
    pytest.importorskip("pyspark")
    inside: list[None] = []
    together: list[int] = []
    environment = {"PYTHONHASHSEED": "0"}
    spark = MagicMock()
    spark.sparkContext.environment = environment
    other = threading.Thread(target=register, args=(spark,))

    def found(_: type) -> None:
        inside.append(None)
        if not together:
            other.start()
            other.join(0.2)
        together.append(len(inside))
        assert spark.sparkContext.environment.keys() == {"PYTHONHASHSEED", *PLANNER_VARIABLES}
        assert list(environment) == ["PYTHONHASHSEED"], "a thread may go through it, to start a task"
        inside.pop()

    spark.dataSource.register = found
    register(spark)
    other.join()
    assert together == [1] * 2 * len(SOURCES)
    assert spark.sparkContext.environment is environment
