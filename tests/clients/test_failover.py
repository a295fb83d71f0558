"""A master is killed under RocketMQ 5's own clients: what they were told is sent is received, in order where asked."""

from __future__ import annotations

import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Admin
from tests.clients.kit import TRIED, Gateway, gateway, installed
from tests.clients.languages import INSTALL_S, ROOM, environment
from tests.support.cluster.failover import wait_master
from tests.support.waiting import wait_until

KINDS = ("NORMAL", "FIFO", "TRANSACTION")
PATIENCE_S = 90.0

pytestmark = [
    pytest.mark.skipif(not TRIED, reason="`make test-clients` kills masters under RocketMQ's own clients"),
    pytest.mark.timeout(INSTALL_S + 600),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("clients"), shards=1, replicas=3, mode="sync") as found:
        with Admin(found.cluster.plan.nameserver_addresses) as admin:
            for language in TRIED:
                admin.create_group(f"{language}-orderly", orderly=True)
        yield found


class Program:
    """A running ``endless`` program, and what it has said. Use it with ``with``."""

    def __init__(self, language: str, address: str, authority: Path) -> None:
        self.sent: dict[str, list[int]] = defaultdict(list)
        self.got: dict[str, list[int]] = defaultdict(list)
        self.other: list[str] = []
        self._language = language
        self._process = subprocess.Popen(
            [*installed(language)("endless"), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(authority),
            cwd=ROOM,
        )
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Program:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match line.decode(errors="replace").split():
                case ["sent", kind, number]:
                    self.sent[kind].append(int(number))
                case ["got", self._language, kind, number]:
                    self.got[kind].append(int(number))
                case ["got", *_]:
                    pass  # another language's
                case words:
                    self.other.append(" ".join(words))

    def wait(self, what: str, lists: dict[str, list[int]], more: int) -> None:
        """Until so many more of each kind are in the lists."""
        wanted = {kind: len(lists[kind]) + more for kind in KINDS}

        def there() -> bool:
            assert self._process.poll() is None, f"the program ended: {self.other[-20:]}"
            return all(len(lists[kind]) >= count for kind, count in wanted.items())

        try:
            wait_until(there, PATIENCE_S, what)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.counts()}: {self.other[-20:]}") from None

    def stop_sending(self) -> None:
        """It receives on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        wait_until(lambda: "idle" in self.other, PATIENCE_S, "the last sends end")

    def missing(self) -> dict[str, list[int]]:
        """What was sent, and should be received, and was not."""
        wanted = {kind: set(self.sent[kind]) - set(self.got[kind]) for kind in KINDS}
        wanted["TRANSACTION"] = {number for number in wanted["TRANSACTION"] if number % 2 == 0}
        return {kind: sorted(numbers) for kind, numbers in wanted.items() if numbers}

    def counts(self) -> dict[str, tuple[int, int]]:
        """Of each kind: sent, received."""
        return {kind: (len(self.sent[kind]), len(self.got[kind])) for kind in KINDS}


@pytest.mark.parametrize("language", TRIED)
def test_nothing_that_is_sent_is_lost_when_the_master_is_killed(language: str, served: Gateway) -> None:
    with Program(language, served.node.address, served.authority) as program:
        program.wait("sends before", program.sent, 20)
        program.wait("receives before", program.got, 5)
        dead, _ = wait_master(served.cluster)
        served.cluster.kill(dead.name)
        program.wait("sends after the master's death", program.sent, 40)
        program.wait("receives after the master's death", program.got, 20)
        served.cluster.restart(dead.name)
        program.wait("sends after its return", program.sent, 20)
        program.stop_sending()
        try:
            wait_until(lambda: not program.missing(), PATIENCE_S, "all is received")
        except AssertionError:
            raise AssertionError(f"missing {program.missing()}: {program.counts()}: {program.other[-20:]}") from None
        print(f"\n{language}: {program.counts()}, told otherwise: {program.other[:-1]}")
        first_time = list(dict.fromkeys(program.got["FIFO"]))
        acknowledged = [number for number in first_time if number in set(program.sent["FIFO"])]
        assert acknowledged == sorted(acknowledged), "first deliveries of a message group are in order"
        assert not [number for number in program.got["TRANSACTION"] if number % 2], "what was rolled back is received"
        assert served.node.is_running
        assert " ERROR " not in served.node.log()
