"""The history that a load test leaves."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.load.plan import LoadPlan
from penstock.bench.load.senders import Load
from penstock.cli.main import main
from penstock.client import SendReceipt, SendStatus
from penstock.drill.load.sending import FLUSH_ROWS, Notes
from penstock.judge.history import NO_KEY, Op, Outcome, Recorder, read_history
from penstock.proto.errors import BrokerUnavailable, DeliveryFailed, OutcomeUnknown

SHARDS = ("broker-a", "broker-b")


def receipt(offset: int, status: SendStatus = SendStatus.SEND_OK) -> SendReceipt:
    return SendReceipt("id", "t", "broker-b", 3, offset, "7F00000100002A9F" + f"{4096:016X}", status, 1, epoch=2)


def rows(folder: Path) -> Any:
    return read_history(folder.glob("*.history")).events


def test_each_end_of_a_send_is_a_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "producer-0.history", 0, "producer-0", SHARDS)
    notes = Notes(recorder, SHARDS, keys=3)
    ends = [
        receipt(17),
        receipt(18, SendStatus.FLUSH_DISK_TIMEOUT),
        BrokerUnavailable("away"),
        OutcomeUnknown("no answer"),
        DeliveryFailed.__new__(DeliveryFailed),
    ]
    for number, ended in enumerate(ends):
        notes(ended, 1024, number, 5, b"body")
    recorder.close()
    found = rows(tmp_path)
    assert found["op"].tolist() == [Op.SEND] * 5
    U, R = Outcome.UNKNOWN, Outcome.REFUSED
    assert found["outcome"].tolist() == [Outcome.OK, U, R, U, U]
    assert (found["stream"].tolist(), found["sequence"].tolist()) == ([1024] * 5, [0, 1, 2, 3, 4])
    assert found["key"].tolist() == [0, 1, 2, 0, 1]
    assert found[["shard", "queue", "offset", "position", "epoch"]][0].tolist() == (1, 3, 17, 4096, 2)
    assert found["offset"].tolist()[2:] == [-1] * 3


def test_rows_reach_the_file_while_the_load_runs(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "producer-0.history", 0, "producer-0", SHARDS)
    notes = Notes(recorder, SHARDS, keys=0)
    for number in range(FLUSH_ROWS + 1):
        notes(receipt(number), 0, number, 5, b"body")
    assert len(rows(tmp_path)) == FLUSH_ROWS
    recorder.close()
    found = rows(tmp_path)
    assert (len(found), set(found["key"].tolist())) == (FLUSH_ROWS + 1, {NO_KEY})


class Answering:
    """Sends that are acknowledged, but for the fourth."""

    def __init__(self) -> None:
        self._sent = 0

    def send(self, topic: str, body: bytes, **options: Any) -> SendReceipt:
        self._sent += 1
        if self._sent == 4:
            raise OutcomeUnknown("no answer")
        return receipt(self._sent - 1)

    def send_async(self, topic: str, body: bytes, **options: Any) -> Future[SendReceipt]:
        future: Future[SendReceipt] = Future()
        try:
            future.set_result(self.send(topic, body))
        except OutcomeUnknown as error:
            future.set_exception(error)
        return future

    def send_batch(self, messages: Any) -> list[SendReceipt]:
        return [self.send("t", message.body) for message in messages]


class Awaited(Answering):
    async def send(self, topic: str, body: bytes, **options: Any) -> SendReceipt:  # type: ignore[override]
        await asyncio.sleep(0)
        return Answering.send(self, topic, body)


@pytest.mark.parametrize(("style", "batch"), [("sync", 1), ("sync", 5), ("async", 1), ("asyncio", 1)])
def test_every_message_of_a_load_is_noted_once(style: str, batch: int) -> None:
    noted: dict[int, Any] = {}

    def note(ended: Any, stream: int, number: int, start_ns: int, body: bytes) -> None:
        assert number not in noted
        assert start_ns > 0
        noted[number] = ended

    plan = LoadPlan(kind="produce", namesrv="n:1", size=64, count=10, style=style, batch=batch, verify=True)
    awaited: Any = Awaited()
    Load(Answering(), plan.share(0), threading.Event(), awaited, note).run()  # type: ignore[arg-type]
    failed = [0, 1, 2, 3, 4] if batch == 5 else [3]
    assert {number: isinstance(ended, OutcomeUnknown) for number, ended in noted.items()} == {
        number: number in failed for number in range(10)
    }


@pytest.mark.parametrize("words", [["--sync"], ["--verify"], ["--verify", "--columnar"]])
def test_a_history_needs_numbers_and_receipts(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["load", "produce", "--namesrv", "127.0.0.1:1", "--history", str(tmp_path / "h"), *words]
    assert main(command) == 2
    assert "--history goes with --verify" in capsys.readouterr().err
    assert not (tmp_path / "h").exists()
