"""What ``penstock pipeline`` says before Spark starts: one line, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench.spark.generate import generate
from penstock.cli.commands.pipeline import _show
from penstock.cli.main import main
from penstock.pipeline.jobs.framework.report import Report
from tests.support.cluster import histories
from tests.support.cluster.cluster import free_ports


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.pipeline.spark.sessions.session", session)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["pipeline", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_place_where_spark_cannot_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(tmp_path / "s", records=20, body_bytes=50, queues=2, segment_bytes=65536)
    store = ["stats", "--store", str(tmp_path / "s")]
    assert "master is 'foo': expected local" in told(capsys, *store, "--master", "foo")
    both = told(capsys, *store, "--master", "local[2]", "--remote", "sc://127.0.0.1:1")
    assert "master is 'local[2]' and remote 'sc://127.0.0.1:1'" in both
    (port,) = free_ports(1)
    assert f"no Connect server answers at 127.0.0.1:{port}" in told(
        capsys, *store, "--remote", f"sc://127.0.0.1:{port}"
    )
    assert "top is 0" in told(capsys, *store, "--top", "0")
    assert "on_corrupt is 'emit'" in told(capsys, *store, "--on-corrupt", "emit")


def test_what_an_audit_cannot_judge_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = str(histories.write(tmp_path / "drills" / "one", histories.clean(40)))
    assert "holds no file *.history; name one of" in told(capsys, "audit", "--history", str(tmp_path / "drills"))
    assert "which exists" in told(capsys, "audit", "--history", history, "--output", str(tmp_path))


def test_one_problem_is_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("job", {})
    report.problem("broken")
    _show(report)
    assert capsys.readouterr().err.splitlines()[-1] == "job: failed: 1 problem"
    report.problem("broken")
    _show(report)
    assert capsys.readouterr().err.splitlines()[-1] == "job: failed: 2 problems"
