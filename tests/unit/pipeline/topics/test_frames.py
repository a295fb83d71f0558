"""A topic as a DataFrame of what is wanted of it: the options that the arguments become."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.pipeline import topic
from penstock.pipeline.topics.options import source_options
from penstock.proto.errors import ConfigError


class Reader:
    """What Spark's reader is told."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.columns = ""

    def format(self, name: str) -> Reader:
        assert name == "penstock"
        return self

    def options(self, **given: str) -> Reader:
        self.given = given
        return self

    def schema(self, columns: str) -> Reader:
        self.columns = columns
        return self

    def load(self) -> Reader:
        return self


class Session:
    def __init__(self) -> None:
        self.read = Reader()
        self.readStream = Reader()


def test_arguments_become_options_that_the_source_takes() -> None:
    spark: Any = Session()
    told = topic(
        spark,
        "a:1",
        ["orders", "bills"],
        columns=["queueId", "body", "properties"],
        since=datetime(2030, 1, 1, tzinfo=UTC),
        until="2030-01-02",
        queues={"broker-a": [0, 2]},
        tags=["paid", "sent"],
        properties="raw",
        failOnDataLoss=False,
    )
    assert told is spark.read
    assert told.columns == "queueId int, body binary, properties string"
    made = source_options(told.given, streaming=False)
    assert {str(queue) for queue in made.assigned} == {
        f"{name}/broker-a/{number}" for name in ("orders", "bills") for number in (0, 2)
    }
    assert (made.starting.timestamp_ms, made.ending.timestamp_ms) == (1_893_456_000_000, 1_893_542_400_000)
    assert (made.sub_expression, made.fail_on_data_loss) == ("paid || sent", False)


def test_a_stream_of_everything_needs_no_more_than_the_topic() -> None:
    spark: Any = Session()
    told = topic(spark, "a:1", "orders", stream=True, condition="n > 3", since=5)
    assert told is spark.readStream
    assert told.columns == ""
    made = source_options(told.given, streaming=True)
    assert (made.topics, made.filter_sql, made.starting.timestamp_ms) == (("orders",), "n > 3", 5)
    assert json.loads(json.dumps(told.given)) == told.given


@pytest.mark.parametrize(("columns", "told"), [(["queueID"], "did you mean 'queueId'"), ([], "name one, as queueId")])
def test_a_column_that_is_none_is_refused_before_spark_is_asked(columns: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        topic(Session(), "a:1", "orders", columns=columns)


def test_one_column_may_be_a_text() -> None:
    assert topic(Session(), "a:1", "orders", columns="tags").columns == "tags string"


@pytest.mark.parametrize("tags", [[], "", [""]])
def test_no_tags_are_not_taken_for_all(tags: list[str] | str) -> None:
    with pytest.raises(ConfigError, match="tags: none is named, which would read all"):
        topic(Session(), "a:1", "orders", tags=tags)
