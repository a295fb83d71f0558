"""Times and key=value options."""

from __future__ import annotations

import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli.commands.drill import _command, drill
from penstock.cli.options import ConsumeFrom, Timestamp, key_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1700000000000", 1_700_000_000_000), ("2023-11-14T22:13:20+00:00", 1_700_000_000_000)],
)
def test_a_time_is_milliseconds_or_iso(text: str, expected: int) -> None:
    assert Timestamp().convert(text, None, None) == expected


def test_a_time_may_lie_so_far_back() -> None:
    before_ms = int(time.time() * 1000)
    ago_ms = Timestamp().convert("10m", None, None)
    assert before_ms <= ago_ms + 600_000 <= time.time() * 1000


@pytest.mark.parametrize("text", ["yesterday", "10x", "", "m", "2023-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        Timestamp().convert(text, None, None)


def test_a_position_is_first_last_or_a_time() -> None:
    assert ConsumeFrom().convert("first", None, None) == "first"
    assert ConsumeFrom().convert("5", None, None) == 5
    with pytest.raises(click.UsageError):
        ConsumeFrom().convert("frist", None, None)


@click.command()
@click.option("--set", "settings", multiple=True, callback=key_values)
def probe(settings: dict[str, str]) -> None:
    print(settings)


def test_settings_are_key_equals_value() -> None:
    runner = CliRunner()
    assert runner.invoke(probe, ["--set", "a=1", "--set", "b = x=y "]).output == "{'a': '1', 'b': 'x=y'}\n"
    assert runner.invoke(probe, ["--set", "a"]).exit_code == 2


def test_a_drill_is_repeated_by_what_it_was_given_and_nothing_else() -> None:
    given = drill.make_context("drill", ["kill-both", "--dir", "d", "--fault", "4"])
    told = _command("kill-both", 3, Path("d"), given.params)
    assert told == "penstock drill kill-both --dir d --seed 3 --fault 4"
