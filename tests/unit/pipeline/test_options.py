"""Options are declared once, and what a user gave is checked against that."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.pipeline.options import (
    REQUIRED,
    Options,
    choice,
    made,
    options_of,
    parse_bytes,
    parse_time_ms,
    setting,
    size,
    whole,
)
from penstock.pipeline.stores.options import OPTIONS
from penstock.pipeline.topics.options import SINK, SOURCE
from penstock.proto.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    store: tuple[str, ...] = setting("where the water comes from")
    interval_s: float = setting("seconds between drops", 1.5)
    intervals: int | None = setting("how many drops", None, kind=whole(1, 9))
    is_open: bool = setting("let it flow", False, name="open")
    size_bytes: int = setting("of a drop", 64, name="dropBytes", kind=size(1, 4096))
    colour: str = setting("of the water", "blue", kind=choice("blue", "brown"))


GOOD = {"store": "a"}


def test_a_declaration_says_everything_that_a_reference_needs() -> None:
    found = {option.name: option for option in options_of(Tap)}
    assert list(found) == ["store", "interval_s", "intervals", "open", "dropBytes", "colour"]
    assert (found["store"].default, found["store"].several) == (REQUIRED, True)
    assert (found["intervals"].kind.expected, found["intervals"].default) == ("a whole number of 1..9", None)
    assert found["colour"].kind.words == ("blue", "brown")
    assert found["open"].kind.of is bool


def test_every_option_has_a_meaning_and_a_default_of_its_kind() -> None:
    for options in (OPTIONS, SOURCE, SINK):
        for option in options.all:
            assert option.meaning, option.name
            if option.default not in (None, REQUIRED, ()):
                assert option.kind.parse(str(option.default)) == option.default, option.name


@pytest.mark.parametrize("name", ["dropBytes", "drop-bytes", "drop_bytes", "dropbytes", "DROPBYTES"])
def test_names_are_spelt_as_shells_and_spark_do(name: str) -> None:
    assert made(Tap, GOOD | {name: "2k"}, "tap").size_bytes == 2048


def test_names_that_differ_by_a_line_are_two() -> None:
    found = made(Tap, GOOD | {"interval-s": "0.5", "intervals": "3", "open": "True"}, "tap")
    assert (found.interval_s, found.intervals, found.is_open) == (0.5, 3, True)
    assert made(Tap, GOOD | {"intervalS": 2}, "tap").interval_s == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "tap: store is missing: where the water comes from$"),
        ({"store": " ,"}, "tap: store is empty: name where the water comes from$"),
        (
            GOOD | {"opn": "true"},
            r"tap: no option 'opn' \(did you mean 'open'\?\)$",
        ),
        (GOOD | {"intervals": "0"}, "tap: intervals is '0': expected a whole number of 1..9$"),
        (GOOD | {"interval_s": "inf"}, "tap: interval_s is 'inf': expected a number$"),
        (GOOD | {"open": "yes"}, "tap: open is 'yes': expected true or false$"),
        (
            GOOD | {"dropBytes": "5k"},
            "tap: dropBytes is '5k': expected a whole number of 1..4,096, also with k, m or g",
        ),
        (GOOD | {"colour": "bron"}, r"tap: colour is 'bron' \(did you mean 'brown'\?\): expected one of blue, brown$"),
    ],
)
def test_what_is_wrong_is_told_with_what_would_be_right(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        made(Tap, given, "tap")


def test_an_empty_text_is_as_good_as_none() -> None:
    given = Options("tap", Tap).read(GOOD | {"colour": "", "intervals": None})
    assert "colour" not in given
    assert (given["colour"], given["intervals"], given["store"]) == ("blue", None, ("a",))
    assert given.at_most_one("store", "colour") == "store"


def test_sizes_have_units() -> None:
    assert [parse_bytes(text) for text in ("7", "64k", "16 MiB", "1g", "-1kb")] == [7, 65536, 16 << 20, 1 << 30, -1024]


def test_what_spark_tells_twice_when_it_makes_a_table_is_taken_once() -> None:
    given = {"option.storePath": "/s", "storepath": "/s", "owner": "somebody"}
    assert OPTIONS.read(given)["storePath"] == ("/s",)
    with pytest.raises(ConfigError, match=r"no option 'option\.storePath'"):
        OPTIONS.read({"option.storePath": "/s"})


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2030-01-01T00:00:00.000400", 1_893_456_000_001),
        ("2030-01-01T00:00:00.000999+00:00", 1_893_456_000_001),
        ("2030-01-01T01:00:00.001+01:00", 1_893_456_000_001),
        ("1969-12-31T23:59:59.998600", -1),
        ("9999-12-31T23:59:59.999000", 253_402_300_799_999),
    ],
)
def test_a_time_between_two_milliseconds_is_the_later_one(text: str, time_ms: int) -> None:
    """Messages stored at the earlier one are before it."""
    assert parse_time_ms(text) == time_ms
