"""Every program of ``examples/`` does what it says, against one real cluster of two shards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from penstock.deploy import LocalCluster
from tests.support.cluster.failover import local_cluster
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SAYS = {
    "produce.py": "order 3: SEND_OK at broker-",
    "produce_fast.py": "100,000 messages are acknowledged",
    "consume_columns.py": "20,000 numbers, sum 199,990,000",
    "deliver_later.py": "tea is ready, ",
    "filter_sql.py": "large European sales: 50 in eu, 500 in eu",
    "asyncio_clients.py": "heard 100 chimes",
    "administer.py": "lag after going back: 20\ni-7 is invoice 7 in queue",
}
LISTENER = "consume_push.py"  # goes on until it is interrupted


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("examples")
    with local_cluster(folder, shards=2, replicas=1, nameservers=1, mode="async") as made:
        yield made


class Listening(NamedTuple):
    """The listener's process, and where it says what it does."""

    process: subprocess.Popen[str]
    said: Path


@pytest.fixture(scope="module")
def listening(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """Runs beside the other programs: a parcel that does not fit comes again after ten seconds."""
    said = tmp_path_factory.mktemp("listening") / "said"
    with said.open("w") as out, running(LISTENER, cluster, out) as process:
        yield Listening(process, said)


@contextlib.contextmanager
def running(
    program: str, cluster: LocalCluster, out: int | IO[str] = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A program that is gone at the end."""
    environment = {**os.environ, "PENSTOCK_NAMESRV": cluster.plan.nameserver_addresses, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(ROOT / "examples" / program)]
    with subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_every_program_is_tried_here_and_told_of_in_their_list() -> None:
    programs = {path.name for path in (ROOT / "examples").glob("*.py")}
    listed = (ROOT / "examples/README.md").read_text()
    assert programs == {*SAYS, LISTENER}
    assert [name for name in sorted(programs) if f"[{name}]({name})" not in listed] == []


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("program", SAYS)
def test_the_program_does_what_it_says(program: str, cluster: LocalCluster) -> None:
    with running(program, cluster) as process:
        out, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, "")
    assert SAYS[program] in out


def test_the_listener_ships_every_parcel_and_ends_on_an_interrupt(listening: Listening) -> None:
    process, said = listening
    wait_until(lambda: said.read_text().count("shipped parcel") == 10, 60, "ten parcels")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line.split(" queue=")[0] for line in errors.splitlines()] == ["listener failed"]
    assert sorted(re.findall(r"shipped parcel (\d+)", said.read_text())) == [str(number) for number in range(10)]
