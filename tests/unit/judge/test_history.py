"""Rows reach the file whole, and what a crash leaves is read up to the last whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.judge.conditions import Conditions, load_conditions
from penstock.judge.history import DamagedHistory, Op, Outcome, Recorder, history_files, read_history
from tests.support.cluster.drill_history import clean


def test_rows_of_several_clients_come_together(tmp_path: Path) -> None:
    for client in (1, 2):
        recorder = Recorder(tmp_path / f"{client}.history", client, f"client-{client}", ["a", "b"])
        for sequence in range(3):
            recorder.add(Op.SEND, Outcome.OK, 5, 9, stream=client, sequence=sequence, crc=1 << 31, shard=1, queue=3)
        recorder.close()
    history = read_history(history_files(tmp_path))
    assert history.clients == {1: "client-1", 2: "client-2"}
    assert history.shards == ("a", "b")
    assert history.events["stream"].tolist() == [1, 1, 1, 2, 2, 2]
    assert history.events["sequence"].tolist() == [0, 1, 2] * 2
    assert set(history.events["crc"].tolist()) == {1 << 31}
    assert history.place_name(history.events[0]) == "b queue 3 offset -1"


def test_a_flushed_row_survives_the_death_of_its_writer_and_others_do_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "1.history", 1, "client", ["a"])
    recorder.add(Op.RECEIVE, Outcome.OK, 1, 2)
    recorder.flush()
    recorder.add(Op.RECEIVE, Outcome.OK, 3, 4)
    assert len(read_history(history_files(tmp_path)).events) == 1
    recorder.close()


def test_an_array_is_kept_as_rows_of_this_client(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "9.history", 9, "client", ["a"])
    recorder.add_all(clean(100).received)
    recorder.close()
    assert read_history(history_files(tmp_path)).events["client"].tolist() == [9] * 100


def test_a_torn_last_row_is_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "1.history"
    recorder = Recorder(path, 1, "client", ["a"])
    for _ in range(2):
        recorder.add(Op.SEND, Outcome.OK, 1, 2)
    recorder.close()
    path.write_bytes(path.read_bytes()[:-10])
    history = read_history([path])
    assert len(history.events) == 1
    assert history.torn_bytes == 54


@pytest.mark.parametrize("content", [b"", b"PENHIST1", b"PENHIST1\xff\xff\xff\xff{", b"something else entirely"])
def test_another_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.history"
    path.write_bytes(content)
    with pytest.raises(DamagedHistory, match=r"x\.history: no history of a drill"):
        read_history([path])


def test_files_of_two_drills_do_not_mix(tmp_path: Path) -> None:
    for number, shards in enumerate((["a"], ["a", "b"])):
        Recorder(tmp_path / f"{number}.history", number, "client", shards).close()
    with pytest.raises(DamagedHistory, match="not of one drill"):
        read_history(history_files(tmp_path))


def test_conditions_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = clean(10).conditions
    written.save(tmp_path)
    assert load_conditions(tmp_path) == written


def test_other_conditions_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "conditions.json").write_text('{"drll": "x"}')
    with pytest.raises(ValueError, match=r"conditions\.json: not the conditions of a drill"):
        load_conditions(tmp_path)
    assert Conditions(drill="d", seed=1, mode="sync", shards=[], queues=1, command="", ended_ns=9).fault_start_ns == 9
