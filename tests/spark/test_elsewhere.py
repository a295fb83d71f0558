"""Sources, sink and a job where tasks run in other processes than the driver, and through a Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client import Admin, Producer
from penstock.pipeline.requirements import java_version
from tests.support import golden
from tests.support.cluster.cluster import cluster

pytestmark = pytest.mark.skipif(not os.environ.get("SINK_KILLS"), reason="make test-spark-full runs it")


@pytest.mark.parametrize("where", ["local-cluster[2,1,768]", "connect:local[2]"])
def test_the_same_answers_come_from_other_masters_and_through_connect(where: str, tmp_path: Path) -> None:
    version = java_version()
    if version is None or version < 17:
        pytest.skip(f"Spark needs Java 17, there is {version or 'none'}")
    store = golden.unpack("direct", tmp_path / "direct")
    sent = [f"message {number}" for number in range(100)]
    with cluster(tmp_path, shards=2, replicas=1) as brokers:
        brokers.start()
        with Admin(brokers.nameservers) as admin, Producer(brokers.nameservers) as producer:
            for topic in ("source", "target"):
                admin.create_topic(topic, queues=2)
            for body in sent:
                producer.produce("source", body.encode(), sharding_key=body)
            producer.flush(30)
        places = [brokers.nameservers, "source", "target", str(store), str(tmp_path / "checkpoint")]
        command = [sys.executable, "-m", "tests.support.spark.spark_job", where, *places]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    wanted = golden.expected("direct")["messages"]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "session": "pyspark.sql.connect.session" if where.startswith("connect:") else "pyspark.sql.session",
        "records": len(wanted),
        "topics": sorted({message["topic"] for message in wanted}),
        "messages": sorted(sent),
        "arrived": sorted([f"batch {number}" for number in range(40)] + [f"stream {body}" for body in sent]),
        "stats": True,
        "archived": len(wanted),
        "checked": True,
        "in_lake": len(wanted),
        "replayed": sum(message["topic"] == "Keys" for message in wanted),
        "mirrored": len(sent),
    }
