"""The commands of ``penstock store``: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from tests.support import golden
from tests.support.golden import damage
from tests.unit.inspection.trees import unpack, untouched

MESSAGE_NAMES = [
    *("topic", "broker_name", "queue_id", "queue_offset", "physical_offset", "size", "message_id"),
    *("offset_message_id", "tag", "keys", "properties", "born_timestamp_ms", "store_timestamp_ms"),
    *("born_host", "store_host", "flag", "sys_flag", "reconsume_times", "body_crc", "body"),
]


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("normal", tmp_path_factory.mktemp("normal"))


def ask(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    assert main(["store", *map(str, words), "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(out) if out else err


def test_inspect_counts_topics_queues_and_keys(normal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with untouched(normal):
        found = ask(capsys, "inspect", normal)
    expected = golden.expected("normal")
    assert found["ok"]
    ranges = {(t["topic"], r[0]): r[1:] for t in found["topics"] for r in t["ranges"]}
    for queue in expected["queues"]:
        if queue["type"] == "SimpleCQ" and queue["maxOffset"] > 0:
            assert ranges[queue["topic"], queue["queueId"]] == [queue["minOffset"], queue["maxOffset"]]
    assert (found["log"]["start"], found["log"]["end"]) == (0, expected["commitLog"]["maxOffset"])
    assert found["keys"] == sum(len(file["entries"]) for file in expected["rawIndex"])
    assert [file["slots"] for file in found["index"]] == [100, 100]
    assert found["checkpoint"]["physic_msg_timestamp"] == expected["checkpointBeforeOpen"]["physicMsgTimestamp"]


def test_inspect_fits_one_screen_of_text(normal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "inspect", str(normal)]) == 0
    out = capsys.readouterr().out
    assert "34 in 16 topics" in out
    assert out.rstrip().endswith("ok")
    assert len(out.splitlines()) < 40


def test_verify_ends_with_ok_and_problems(normal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "verify", "--dir", normal)
    assert list(found)[-2:] == ["ok", "problems"]
    assert found["ok"] is True
    root = unpack("direct", tmp_path)
    damage(root, [{"file": "checkpoint", "truncate": 7}])
    found = ask(capsys, "verify", root, code=1)
    assert found["ok"] is False
    assert set(found["problems"][0]) == {"path", "offset", "problem"}
    assert main(["store", "verify", str(root)]) == 1
    assert "NOT OK: 1 problems" in capsys.readouterr().out


def test_query_prints_messages_oldest_first(normal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "query", normal, "--topic", "GoldTopic", "--key", "shared", "--max", 3)
    offsets = [message["physical_offset"] for message in found["messages"]]
    assert offsets == sorted(offsets)
    assert len(offsets) == 3
    assert list(found["messages"][0]) == MESSAGE_NAMES
    assert found["source"] == "index"
    single = ask(capsys, "query", normal, "--topic", "GoldTopic", "--queue", 1, "--offset", 3)
    assert [(m["queue_id"], m["queue_offset"]) for m in single["messages"]] == [(1, 3)]
    times = ask(capsys, "query", normal, "--topic", "GoldTopic", "--time", 1795222637629)
    assert [queue["queue_id"] for queue in times["queues"]] == [0, 1, 2, 3]


def test_dump_prints_fields_with_their_bytes(normal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "dump", "checkpoint", "--dir", normal)
    assert found["kind"] == "checkpoint"
    first = found["items"][0]["fields"][0]
    assert (first["name"], first["at"], len(first["bytes"])) == ("physicMsgTimestamp", 0, 16)
    assert main(["store", "dump", str(normal / "commitlog" / f"{0:020d}"), "--at", "0"]) == 0
    assert "PHYSICALOFFSET" in capsys.readouterr().out


def test_rebuild_tells_what_it_made(normal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with untouched(normal):
        found = ask(capsys, "rebuild", normal, "--into", tmp_path / "new")
    assert found["records"] == len(golden.expected("normal")["messages"])
    assert ask(capsys, "verify", tmp_path / "new")["ok"]
    assert "not empty" in ask(capsys, "rebuild", normal, "--into", tmp_path / "new", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ["verify"],
        ["verify", "{}", "--dir", "{}"],
        ["query", "{}", "--topic", "T"],
        ["query", "{}", "--topic", "T", "--offset", "1"],
        ["query", "{}", "--topic", "T", "--key", "K", "--time", "1"],
        ["dump", "{}/checkpoint", "--kind", "poem"],
        ["dump", "{}/checkpoint", "--at", "-1"],
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], normal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", *(word.format(normal) for word in words)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
