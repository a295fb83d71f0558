"""One archive is all that executors need whose Python has no packages."""

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
from tests.support.spark import spark_job
from tests.support.spark.standalone import standalone

pytestmark = pytest.mark.skipif(not os.environ.get("SINK_KILLS"), reason="make test-spark-full runs it")


@pytest.mark.timeout(1800)
def test_a_job_runs_on_executors_that_have_nothing_but_the_archive(tmp_path: Path) -> None:
    version = java_version()
    if version is None or version < 17:
        pytest.skip(f"Spark needs Java 17, there is {version or 'none'}")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare, own = tmp_path / "bare" / "bin", Path(sys.executable).parent
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "package", str(tmp_path / "all.tar.gz"), "--json"]
    made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    without = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    lacks = [str(bare / made["python"]), "-c", "import numpy"]
    assert subprocess.run(lacks, env=without, capture_output=True, check=False).returncode != 0
    store = golden.unpack("direct", tmp_path / "direct")
    sent = [f"message {number}" for number in range(40)]
    with cluster(tmp_path, shards=2, replicas=1) as brokers, standalone(tmp_path, bare) as master:
        brokers.start()
        with Admin(brokers.nameservers) as admin, Producer(brokers.nameservers) as producer:
            for topic in ("source", "target"):
                admin.create_topic(topic, queues=2)
            for body in sent:
                producer.produce("source", body.encode(), sharding_key=body)
            producer.flush(30)
        settings = [word for key, value in made["settings"].items() for word in ("--conf", f"{key}={value}")]
        places = [brokers.nameservers, "source", "target", str(store), str(tmp_path / "checkpoint")]
        submitted = [str(own / "spark-submit"), "--master", master, *settings, spark_job.__file__, master, *places]
        active = os.environ | {"PATH": os.pathsep.join((str(own), os.environ["PATH"]))}
        done = subprocess.run(submitted, env=active, capture_output=True, text=True, timeout=1200, check=False)
        words = ["pipeline", "stats", "--store", str(store), "--master", master, *settings, "--json"]
        words += [word for key, value in spark_job.CONF.items() for word in ("--conf", f"{key}={value}")]
        command = [sys.executable, "-m", "penstock.cli", *words]
        by_command = subprocess.run(command, env=active, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["messages"] == sorted(sent)
    assert found["arrived"] == sorted([f"batch {number}" for number in range(40)] + [f"stream {body}" for body in sent])
    assert found["records"] == found["archived"] == found["in_lake"] == len(golden.expected("direct")["messages"])
    assert (found["checked"], found["mirrored"]) == (True, len(sent))
    assert by_command.returncode == 0, by_command.stderr[-4000:]
    assert json.loads(by_command.stdout)["ok"] is True
    for number in range(2):  # each executor has run tasks from its own copy
        loaded = list((tmp_path / f"worker-{number}").rglob("penstock-packages/penstock/pipeline/__init__.py"))
        assert loaded
