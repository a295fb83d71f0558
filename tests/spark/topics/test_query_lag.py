"""How far a stream is behind, asked of the query and read in the log that a session keeps of its streams."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline import behind, lag
from tests.spark.test_topics import send
from tests.support.cluster.cluster import Cluster
from tests.support.waiting import wait_until


def test_each_batch_is_told_with_what_it_leaves_and_how_fast_it_was(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(brokers, topic, [b"%d" % number for number in range(60)])
    options = {"nameServer": brokers.nameservers, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("penstock").options(**options, maxOffsetsPerTrigger="24").load()
    writer = frame.select("body").writeStream.format("noop").queryName("told")
    with caplog.at_level(logging.INFO, "penstock.pipeline"):
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        wait_until(lambda: len(told(caplog, topic)) == 3 or None, 60, "Spark has told of three batches")
    assert behind(query) == {topic: 0}
    found = lag(query)[topic]
    assert (found.end, found.committed, found.behind, found.produced_per_second) == (60, 60, 0, 0.0)
    assert found.consumed_per_second is not None
    assert found.consumed_per_second > 0
    lines = told(caplog, topic)
    left = [int(line["behind"]) for line in lines]
    assert left == sorted(left, reverse=True)
    assert left[0] > 0 == left[-1]
    assert all(line["query"] == "told" and line["end"] == "60" for line in lines)
    assert [int(line["committed"]) for line in lines] == [60 - each for each in left]
    assert [line["consumed_per_second"] == "unknown" for line in lines] == [True, False, False]


def told(caplog: pytest.LogCaptureFixture, topic: str) -> list[dict[str, str]]:
    """The fields of the topic's lines."""
    lines = [record.getMessage() for record in caplog.records if record.name.endswith(".lag")]
    return [fields for fields in (dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines) if fields["topic"] == topic]
