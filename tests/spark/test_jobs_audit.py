"""The audit beside stores: whose they are, what lies in them, and reads that a history has not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.spark.generate import TOPIC, generate
from penstock.cli.main import main
from penstock.judge.conditions import Conditions
from penstock.judge.history import Op, Outcome
from penstock.judge.verdict import TITLES
from penstock.pipeline.jobs import audit
from penstock.pipeline.jobs.framework.report import Check
from penstock.proto.errors import ConfigError
from tests.support.cluster import histories
from tests.support.cluster.cluster import cluster
from tests.support.cluster.histories import MS, STREAM
from tests.unit.pipeline.stores.test_store_splits import rows as rows_of

COUNT = 60
CONDITIONS = Conditions()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a replica of broker-a: 60 messages in four queues."""
    root = tmp_path_factory.mktemp("audit") / "broker-a-0" / "store"
    generate(root, records=COUNT, body_bytes=50, queues=4, segment_bytes=1 << 20)
    return str(root)


@pytest.fixture(scope="module")
def sent(store: str) -> Any:
    """The sends of what the store holds."""
    made = histories.rows(COUNT)
    made["op"], made["outcome"], made["stream"], made["epoch"] = Op.SEND, Outcome.OK, STREAM, 1
    for number, row in enumerate(rows_of(Path(store))):
        made["sequence"][number], made["shard"][number] = number, 0
        made["queue"][number], made["offset"][number] = row["queueId"], row["queueOffset"]
        made["crc"][number] = row["bodyCrc"]
        made["start_ns"][number], made["end_ns"][number] = number * MS, number * MS + MS // 2
    return made


def violations(report: Any) -> dict[str, int]:
    return {check.name: check.violations for check in report.checks if check.violations}


def test_stores_stand_for_reads_that_a_history_has_not(spark: Any, store: str, sent: Any, tmp_path: Path) -> None:
    whole = histories.write(tmp_path / "whole", {"sent": sent}, CONDITIONS)
    report = audit.run(spark, audit.Config(history=str(whole), store=(store,)))
    assert report.ok, report.problems
    assert report.figures["topic"] == TOPIC
    assert "stores stand" in report.figures["reads"]
    assert [check for check in report.checks if check.name in ("I1", "I2", "I5")] == [
        Check(name, TITLES[name], COUNT) for name in ("I1", "I2", "I5")
    ]
    assert all(check.note for check in report.checks if check.holds is None)
    (latencies,) = (table for table in report.tables if table.title == "Latencies, ms")
    assert [row[0] for row in latencies.rows] == ["send to acknowledgement", "birth to store"]
    assert (report.plots[0].title, report.plots[0].x) == ("Latency of messages", ["≤ 1 ms"])
    wrong = sent[1:].copy()  # what is stored of number 0 was not sent; number 60 was acknowledged and is nowhere
    wrong["sequence"][-1], wrong["offset"][-1], wrong["crc"][-1] = COUNT, 10_000, 77
    wrong["crc"][5] ^= 1
    damaged = histories.write(tmp_path / "damaged", {"sent": wrong}, CONDITIONS)
    report = audit.run(spark, audit.Config(history=str(damaged), store=(store,), topic=TOPIC))
    assert violations(report) == {"I1": 2, "I2": 3, "I3": 1}
    assert report.figures["missing_not_on_disk"] == 2


def test_what_nobody_read_is_found_in_the_store_of_its_shard(spark: Any, store: str, sent: Any, tmp_path: Path) -> None:
    read = sent.copy()
    read["op"], read["epoch"] = Op.READ, 0
    history = str(histories.write(tmp_path / "h", {"sent": sent, "read": read[:-3]}, CONDITIONS))
    report = audit.run(spark, audit.Config(history=history, store=(store,)))
    assert violations(report) == {"I1": 3}
    assert (report.figures["missing_on_disk"], report.figures["missing_not_on_disk"]) == (3, 0)
    assert "reads" not in report.figures
    with pytest.raises(ConfigError, match=r"is of broker 'other', the history knows broker-a, broker-b"):
        audit.run(spark, audit.Config(history=history, store=(store,), broker_name=("other",)))


def test_a_history_of_nothing_is_a_problem(spark: Any, tmp_path: Path) -> None:
    parts = histories.clean(40)
    for name, kept in (("nothing", {"sent": parts["sent"][:0]}), ("looks", {"looks": parts["looks"]})):
        report = audit.run(spark, audit.Config(history=str(histories.write(tmp_path / name, kept))))
        assert [problem["problem"].partition(":")[0] for problem in report.problems] == ["there is nothing to judge"]
        assert {check.holds for check in report.checks} == {None}


THROUGH_CONNECT = """
import sys
from penstock.pipeline import session
from penstock.pipeline.jobs import audit
spark = session(remote="local[2]")
report = audit.run(spark, audit.Config(history=sys.argv[1], output=sys.argv[2]))
print(type(spark).__module__, report.ok, spark.read.parquet(sys.argv[2]).count())
spark.stop()
"""


@pytest.mark.skipif(not os.environ.get("SINK_KILLS"), reason="make test-spark-full runs it")
def test_rows_of_messages_are_written_through_connect_too(spark: Any, tmp_path: Path) -> None:
    history = histories.write(tmp_path / "h", histories.clean())
    command = [sys.executable, "-c", THROUGH_CONNECT, str(history), str(tmp_path / "messages")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stdout.splitlines()[-1] == "pyspark.sql.connect.session True 400"


def test_a_load_test_leaves_a_history_that_its_stores_bear_out(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(tmp_path, shards=2, replicas=1) as brokers:
        brokers.start()
        where = ["--namesrv", brokers.nameservers, "--topic", "loaded"]
        how = ["--sync", "--threads", "2", "--verify", "--size", "100", "--count", "300", "--keys", "5"]
        command = ["load", "produce", *where, *how, "--history"]
        assert main([*command, str(tmp_path / "h")]) == 0
        assert main([*command, str(tmp_path / "again")]) == 2
        assert "topic loaded holds 300 messages of others" in capsys.readouterr().err
        stores = tuple(str(brokers.broker(name, 0).store) for name in "ab")
        for name in ("broker-a-0", "broker-b-0"):
            brokers.nodes[name].stop()
    report = audit.run(spark, audit.Config(history=str(tmp_path / "h"), store=stores))
    assert report.ok, report.problems
    checked = {check.name: check.checked for check in report.checks if check.checked and check.name != "I7"}
    assert checked == dict.fromkeys(("I1", "I2", "I3", "I4", "I5", "I9"), 300)
    report = audit.run(spark, audit.Config(history=str(tmp_path / "h")))
    assert report.ok, report.problems
    (lost,) = (check for check in report.checks if check.name == "I1")
    assert (lost.holds, lost.note) == (None, "no reads in this history; give --store")
