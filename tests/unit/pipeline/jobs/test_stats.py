"""What the job stats decides without Spark: options, the queues of a topic, skew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.jobs import stats
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.stores.topic_names import known_queues
from penstock.proto.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"top": 0}, "top is 0: 1 to 10000"),
        ({"top": -1}, "top is -1: 1 to 10000"),
        ({"top": 200_000}, "top is 200000: 1 to 10000"),
        ({"on_corrupt": "emit"}, "on_corrupt is 'emit': fail or skip"),
        ({"broker_name": ("a", "b")}, "broker_name lists 2 names"),
        ({"start": "yesterday"}, "start is 'yesterday': expected a time"),
        ({"start": "2026-03-02", "end": "2026-03-01"}, "nothing lies between them"),
    ],
)
def test_wrong_options_are_told_before_spark_starts(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"stats: .*{text}"):
        stats.check(stats.Config(store=("absent",), **values))


def test_options_that_are_right_pass() -> None:
    stats.check(stats.Config(store=("absent",), top=10_000, on_corrupt="skip", start="2026-03-01", end="2026-03-02"))


def store_with(folder: Path, config: Any, queues: dict[str, list[str]]) -> str:
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "topics.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for topic, ids in queues.items():
        for queue_id in ids:
            (folder / "consumequeue" / topic / queue_id).mkdir(parents=True)
    return str(folder)


def topics(**counts: int) -> dict[str, Any]:
    table = {name: {"topicName": name, "readQueueNums": n, "writeQueueNums": n - 1} for name, n in counts.items()}
    return {"topicConfigTable": table}


def test_queues_are_those_of_the_configuration_and_of_the_folders(tmp_path: Path) -> None:
    root = store_with(tmp_path / "s", topics(one=3, two=1, other=4), {"one": ["0", "7", "lost+found"], "three": ["2"]})
    assert known_queues(root) == {"one": {0, 1, 2, 7}, "two": {0}, "three": {2}, "other": {0, 1, 2, 3}}
    assert known_queues(str(tmp_path)) == {}


@pytest.mark.parametrize("config", ["{", "[]", '{"topicConfigTable": []}', '{"topicConfigTable": {"one": 3}}'])
def test_a_configuration_that_is_none_leaves_the_folders(tmp_path: Path, config: str) -> None:
    assert known_queues(store_with(tmp_path / "s", config, {"one": ["1"]})) == {"one": {1}}


def test_a_topic_with_all_messages_in_one_of_eight_queues_is_skewed() -> None:
    report = Report("stats", {})
    row = {"topic": "one", "brokerName": "b", "queueId": 5, "at": 60_000, "messages": 1000, "bytes": 9000, "largest": 9}
    stats._count(report, [row], [("one", "b", number) for number in range(8)], 60_000)
    by_title = {table.title: table for table in report.tables}
    assert by_title["Topics"].rows == [["one", 8, 1000, 9000, 9, 8.0]]
    assert by_title["Skewed queues"].rows == [["one", "b", 5, 1000, 8.0]]
    assert report.figures["queues"] == 8
    (plot,) = (plot for plot in report.plots if plot.title == "Messages by queue of one")
    assert plot.x == [f"queue {number}" for number in range(8)]
    assert plot.series == {"messages": [0.0] * 5 + [1000.0, 0.0, 0.0]}


def test_queues_of_several_brokers_are_named_with_them() -> None:
    report = Report("stats", {})
    row = {"topic": "one", "brokerName": "b", "queueId": 0, "at": None, "messages": 10, "bytes": 90, "largest": 9}
    stats._count(report, [row], [("one", "a", 0), ("one", "b", 0)], 60_000)
    assert report.plots[-1].x == ["a 0", "b 0"]
