"""Sources, sink and a job where tasks run in other processes than the driver, and through a Connect server.

And the example of a declarative pipeline, which such a server runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client import Admin, Producer
from penstock.pipeline.requirements import java_version
from tests.support import golden
from tests.support.cluster.cluster import cluster

pytestmark = [
    pytest.mark.skipif((java_version() or 0) < 17, reason="Spark needs Java 17"),
    pytest.mark.skipif(not os.environ.get("SINK_KILLS"), reason="make test-spark-full runs it"),
]
EXAMPLE = Path(__file__).parents[2] / "docs" / "declarative"
SUMS = """
import json, sys
import pyarrow.parquet as parquet
rows = parquet.read_table(sys.argv[1]).to_pylist()
print(json.dumps([[row["customer"], row["amount"]] for row in rows]))
"""


@pytest.mark.parametrize("where", ["local-cluster[2,1,768]", "connect:local[2]"])
def test_the_same_answers_come_from_other_masters_and_through_connect(where: str, tmp_path: Path) -> None:
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


def test_each_run_takes_what_has_come_since_the_last_one(tmp_path: Path) -> None:
    project = Path(shutil.copytree(EXAMPLE, tmp_path / "project"))
    described = project / "spark-pipeline.yml"
    described.write_text(described.read_text().replace("file:///tmp/orders/storage", (tmp_path / "storage").as_uri()))
    with cluster(tmp_path, shards=1, replicas=1) as brokers:
        brokers.start()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PENSTOCK_NAMESRV": brokers.nameservers, "PATH": path}
        command = ["spark-pipelines", "--conf", "spark.sql.catalogImplementation=hive", "run"]
        with Admin(brokers.nameservers) as admin, Producer(brokers.nameservers) as producer:
            for topic in ("orders", "large-orders"):
                admin.create_topic(topic, queues=4)
            for turn in (1, 2):
                for amount in range(1000):
                    order = {"customer": f"customer-{amount % 7}", "amount": amount}
                    producer.produce("orders", json.dumps(order).encode())
                producer.flush(30)
                done = subprocess.run(
                    command, cwd=project, env=environment, capture_output=True, text=True, timeout=600, check=False
                )
                assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
                assert admin.topic_stats("large-orders").messages == 100 * turn
    tables = project / "spark-warehouse"
    sums = subprocess.run(
        [sys.executable, "-c", SUMS, str(tables / "largest_customers")], capture_output=True, text=True, check=True
    )
    assert json.loads(sums.stdout) == [[f"customer-{k}", 2 * sum(range(k, 1000, 7))] for k in (5, 4, 3, 2, 1, 0, 6)]
