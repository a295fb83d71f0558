"""Cases beside other systems: pairs that alternate, servers that end, and what is said where something is missing."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.bench.page import keep, newest, render
from penstock.bench.peers import proxies, rooms
from penstock.bench.peers.cases import PEERS
from penstock.bench.peers.pairs import pairs
from penstock.bench.peers.servers import running, told_by
from penstock.bench.rig import Rig
from penstock.bench.runner import RATIO, Case, Figures, run_case
from penstock.deploy.ports import planned
from penstock.proto.errors import PenstockError
from scripts.docs import chart

SERVER = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"

ROOM = rooms.Room("java", "jars", "python", {"Kafka": "4.1.0"})


def a_rig(folder: Path) -> Rig:
    return Rig(seconds=1.0, scratch=folder, progress=lambda _: None)


def test_pairs_alternate_and_a_ratio_is_of_one_pair(tmp_path: Path) -> None:
    order: list[str] = []

    def side(name: str, *values: float) -> Callable[[Rig], Figures]:
        left = iter(values)

        def run(_: Rig) -> Figures:
            order.append(name)
            return {name: next(left)}

        return run

    turns = pairs(
        side("ours", 300.0, 100.0, 90.0), side("theirs", 100.0, 50.0, 30.0), [("ours", "theirs")], lambda: ROOM
    )
    case = Case("beside", "a title", turns, floors={f"ours{RATIO}theirs": 2.5})
    result = run_case(case, a_rig(tmp_path), repeats=3)
    measures = result["measures"]
    assert result["versions"] == {"Kafka": "4.1.0"}
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert measures["ours ÷ theirs"] == {
        "unit": "",
        "median": 3.0,
        "min": 2.0,
        "max": 3.0,
        "floor": 2.5,
        "met": True,
    }
    assert measures["theirs"]["median"] == 50.0


def test_cases_beside_others_run_only_when_they_are_named_and_have_goals_for_ratios() -> None:
    assert all(case.is_heavy for case in PEERS.values())
    assert all(RATIO in name for case in PEERS.values() for name in case.floors)
    shown = {(case, figure) for _, rows in chart.BESIDE for _, case, figure in rows}
    of_a_gateway = {case.name for case in proxies.cases()}
    assert {case for case, _ in shown} == set(PEERS) - of_a_gateway
    goals = {(name, goal) for name, case in PEERS.items() if name not in of_a_gateway for goal in case.floors}
    assert goals - shown == {("kafka-produce-100b", "produce_many ÷ librdkafka")}


def test_where_a_tool_is_missing_the_error_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    rooms.rocketmq.cache_clear()
    rooms._java_version.cache_clear()
    with pytest.raises(rooms.PeerMissing, match=r"java is not here: .* install a JDK of 17 or later and Maven"):
        rooms.rocketmq()


def test_a_registry_that_refuses_leaves_no_half_filled_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\nmkdir -p ${5#-DoutputDirectory=}\necho cannot resolve >&2\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setattr(rooms, "ROOM", tmp_path / "room")
    monkeypatch.setattr(shutil, "which", lambda _: str(maven))
    for _ in range(2):
        with pytest.raises(rooms.PeerMissing, match="cannot resolve"):
            rooms._jars("kafka")
    pom = (tmp_path / "room" / "kafka.xml").read_text()
    assert f"<artifactId>kafka_2.13</artifactId><version>{rooms.KAFKA}</version>" in pom


def test_a_server_serves_for_the_block_and_has_ended_after_it(tmp_path: Path) -> None:
    _, (port,) = planned(0, 1, 1)
    with running("peer", [sys.executable, "-c", SERVER, str(port)], tmp_path, port) as process:
        socket.create_connection(("127.0.0.1", port), timeout=5.0).close()
        assert process.poll() is None
    assert process.returncode is not None


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    _, (port,) = planned(0, 1, 1)
    words = [sys.executable, "-c", "import sys; sys.exit('no memory left')"]
    with (
        pytest.raises(PenstockError, match="peer has ended with 1: no memory left"),
        running("peer", words, tmp_path, port),
    ):
        pytest.fail("it does not run")


def test_a_load_without_a_figure_is_an_error() -> None:
    assert told_by([sys.executable, "-c", "print('loading'); print('{\"rate\": 2.5}')"], 1.0) == {"rate": 2.5}
    with pytest.raises(PenstockError, match="was refused"):
        told_by([sys.executable, "-c", "import sys; sys.exit('a message was refused')"], 1.0)


def a_result(case: str, figures: dict[str, float]) -> dict[str, Any]:
    measures = {
        name: {"unit": "" if RATIO in name else "messages/s", "median": value, "min": value, "max": value}
        for name, value in figures.items()
    }
    machine = {
        "processor": "Z80",
        "processors": 2,
        "memory_gib": 1.0,
        "system": "CP/M",
        "python": "3.11",
        "time": "2026-11-25T00:00:00+00:00",
        "warm_memory": False,
    }
    versions = {"Kafka": "4.1.0", "Java": "17"}
    return {
        "case": case,
        "title": "a title",
        "repeats": 5,
        "seconds": 5.0,
        "measures": measures,
        "versions": versions,
        "commit": "abc",
        "machine": machine,
        "cpu_share": {},
        "log_bytes": 0,
        "own_memory_mib": 0.0,
    }


def test_their_page_shows_ratios_alone_and_the_other_page_nothing_of_them(tmp_path: Path) -> None:
    keep(a_result("kafka-produce-1k", {"produce ÷ librdkafka": 1.4, "produce": 350_000.0}), tmp_path)
    text = render(tmp_path).with_name("PEERS.md").read_text()
    row = "| produce ÷ librdkafka | 1.40 | 1.40 | 1.40 |  | 5 × 5 s | Kafka 4.1.0, Java 17 | abc |"
    assert row in text
    assert "350" not in text
    assert "kafka-produce" not in (tmp_path / "RESULTS.md").read_text()
    assert not newest(tmp_path)


def test_the_chart_shows_ratios_as_soon_as_a_machine_has_all_of_them(tmp_path: Path) -> None:
    figures: dict[str, dict[str, float]] = {}
    for _, rows in chart.BESIDE:
        for _, case, name in rows:
            figures.setdefault(case, {})[name] = 1.25
    for case, found in figures.items():
        keep(a_result(case, found), tmp_path)
        if case != list(figures)[-1]:
            with pytest.raises(ValueError, match="no machine has results"):
                chart.newest(tmp_path, chart.BESIDE)
    picture = chart.svg(tmp_path)
    assert picture.count("1.25 ×") == sum(len(rows) for _, rows in chart.BESIDE)
    assert "bench/PEERS.md" in picture


def test_what_receives_goes_first_and_both_sides_have_the_same_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def at(found: Any) -> Iterator[Any]:
        yield found

    monkeypatch.setattr(proxies, "_broker", lambda _: at(("ours", psutil.Process())))
    monkeypatch.setattr(proxies.servers, "proxy", lambda _: at(("theirs", psutil.Process())))
    monkeypatch.setattr(proxies, "_room", lambda: ROOM)
    loads: list[tuple[str, str]] = []

    def load(_: Rig, address: str, kind: str) -> float:
        loads.append((address, kind))
        return 3.0 if address == "ours" else 2.0

    for name in ("rocketmq-v2", "rocketmq-v2-java"):
        kinds = [goal.split(RATIO)[0] for goal in PEERS[name].floors]
        assert kinds[0] in proxies.RECEIVING
        assert not proxies.RECEIVING.intersection(kinds[1:])
        loads.clear()
        case = proxies._case(name, "a title", load, dict.fromkeys(kinds, 1.5))
        result = run_case(case, a_rig(tmp_path), repeats=1)
        assert loads == [(address, kind) for address in ("ours", "theirs") for kind in kinds]
        assert all(result["measures"][f"{kind}{RATIO}RocketMQ {kind}"]["median"] == 1.5 for kind in kinds)


def test_what_idle_clients_cost_is_divided_the_other_way_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def at(_: Rig) -> Iterator[tuple[str, psutil.Process]]:
        yield "there", psutil.Process()

    monkeypatch.setattr(proxies, "_gateway", at)
    monkeypatch.setattr(proxies.servers, "proxy", at)
    monkeypatch.setattr(proxies, "_room", lambda: ROOM)
    monkeypatch.setattr(proxies, "_SETTLE_S", 0.0)
    monkeypatch.setattr(
        proxies, "_idle", lambda _, __, ___, prefix: {f"{prefix}memory": 50.0, f"{prefix}CPU": 10.0 if prefix else 4.0}
    )
    measures = run_case(PEERS["rocketmq-v2-idle"], a_rig(tmp_path), repeats=1)["measures"]
    medians = {name: measures[name]["median"] for name in PEERS["rocketmq-v2-idle"].floors}
    assert medians == {
        f"200 MiB{RATIO}memory": 4.0,
        f"5 % of a core{RATIO}CPU": 1.25,
        f"RocketMQ CPU{RATIO}CPU": 2.5,
    }


def test_records_name_their_commit(tmp_path: Path) -> None:
    turns = pairs(lambda _: {"a": 1.0}, lambda _: {"b": 1.0}, [("a", "b")], lambda: ROOM)
    result = run_case(Case("x", "y", turns), a_rig(tmp_path), repeats=1)
    assert len(result["commit"].removesuffix("+")) == 12
    assert json.dumps(result)
