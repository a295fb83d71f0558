"""``penstock drill`` without processes: what it lists, refuses, and says of records that are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.drill.catalogue import DRILLS
from penstock.judge.history import Recorder
from tests.support.cluster.drill_history import SHARDS, Damaged, clean

Capture = pytest.CaptureFixture[str]


def recorded(folder: Path, damage: Callable[[Damaged], None] = lambda _: None) -> Path:
    """A drill's folder as a drill leaves it."""
    damaged = clean(1000)
    damage(damaged)
    folder.mkdir()
    recorder = Recorder(folder / "everybody.history", 1, "everybody", SHARDS)
    recorder.add_all(damaged.history.events.copy())
    recorder.close()
    damaged.conditions.save(folder)
    return folder


def test_all_drills_are_listed(capsys: Capture) -> None:
    assert main(["drill", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["drills"]
    assert [each["name"] for each in listed] == list(DRILLS)
    assert {"master-kill", "partition-master", "disk-full", "crash-loop"} <= set(DRILLS)


def test_records_are_judged_again(tmp_path: Path, capsys: Capture) -> None:
    folder = recorded(tmp_path / "drill")
    assert main(["drill", "judge", "--dir", str(folder), "--json", "--report", str(tmp_path / "page.html")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]
    assert document["drills"][0]["counts"]["acknowledged"] == 1000
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_a_report_that_cannot_be_written_costs_no_verdict(tmp_path: Path, capsys: Capture) -> None:
    folder = recorded(tmp_path / "drill")
    assert main(["drill", "judge", "--dir", str(folder), "--report", str(tmp_path / "no" / "page.html")]) == 2
    assert f"there is no directory {tmp_path / 'no'}" in capsys.readouterr().err
    (tmp_path / "page.html.tmp").mkdir()  # in the way of the draft
    assert main(["drill", "judge", "--dir", str(folder), "--report", str(tmp_path / "page.html")]) == 1
    told = capsys.readouterr()
    assert "all held" in told.out
    assert f"{tmp_path / 'page.html'}: the report is not written" in told.err


def test_a_violation_is_shown_and_fails_the_command(tmp_path: Path, capsys: Capture) -> None:
    def lose_one(damaged: Damaged) -> None:
        damaged.read = damaged.read[:-1]

    folder = recorded(tmp_path / "drill", lose_one)
    assert main(["drill", "judge", "--dir", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "VIOLATED I1" in shown
    assert "message 7.999 at broker-b queue 1 offset 232 was acknowledged and is not there" in shown
    assert "penstock drill master-kill --seed 1" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-drill", "--dir", "{}"], "no drill 'no-such-drill': master-kill, slave-kill"),
        (["master-kill"], "give --dir DIR"),
        ([], "NAME"),
        (["master-kill", "--dir", "{}", "--rate", "1"], "--rate 1: must be 10..100000"),
        (["master-kill", "--dir", "{}", "--fault", "0"], "--fault 0: must be 1..3600 seconds"),
        (["judge", "--dir", "{}"], "no drill was recorded there: give a folder such as DIR/master-kill-1"),
        (["judge", "--dir", "{}/missing"], "missing: no drill was recorded there"),
    ],
)
def test_bad_usage_is_named_and_starts_nothing(
    arguments: list[str], words: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["drill", *(text.format(tmp_path) for text in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_records_without_a_history_are_refused(tmp_path: Path, capsys: Capture) -> None:
    folder = recorded(tmp_path / "drill")
    (folder / "everybody.history").unlink()
    assert main(["drill", "judge", "--dir", str(folder)]) == 2
    assert "holds no history" in capsys.readouterr().err
