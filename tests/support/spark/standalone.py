"""A standalone cluster of Spark on loopback, whose workers have a Python of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.support.cluster.cluster import free_ports
from tests.support.waiting import wait_until

_STARTED_S = 120
_OF_THE_MACHINE = ("HOME", "JAVA_HOME", "LANG", "TMPDIR")


@contextlib.contextmanager
def standalone(directory: Path, python_folder: Path, *, workers: int = 2) -> Iterator[str]:
    """The master's address. Workers of one core find commands in ``python_folder`` first, and know no other Python."""
    home = Path(pyspark.__file__).parent
    inherited = {name: os.environ[name] for name in _OF_THE_MACHINE if name in os.environ}
    search = os.pathsep.join((str(python_folder), *os.environ["PATH"].split(os.pathsep)))
    bare = inherited | {"PATH": search, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    of_master = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    of_worker = ("worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "900m", "--webui-port", "0")
    log = directory / "master.log"
    with contextlib.ExitStack() as stack:

        def start(name: str, words: tuple[str, ...]) -> None:
            place = directory / name
            place.mkdir()
            output = stack.enter_context((directory / f"{name}.log").open("wb"))
            kind, *arguments = words
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
            process = subprocess.Popen(command, cwd=place, env=bare, stdout=output, stderr=output)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        def is_told(text: str, times: int) -> bool | None:
            return log.read_text().count(text) >= times or None

        start("master", of_master)
        wait_until(lambda: is_told("New state: ALIVE", 1), _STARTED_S, "the master is there")
        for number in range(workers):
            start(f"worker-{number}", (*of_worker, "--work-dir", str(directory / f"worker-{number}"), master))
        wait_until(lambda: is_told("Registering worker", workers), _STARTED_S, "the workers are there")
        yield master
