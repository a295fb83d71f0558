"""What programs do with RocketMQ 5's own clients: all types of messages, consumers, filters, transactions, recall."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.kit import TRIED, Gateway, gateway, installed
from tests.clients.languages import INSTALL_S, ROOM, environment

WIRE = Path(__file__).parents[2] / "gateway" / "v2" / "wire"
PROGRAM_S = 110

pytestmark = pytest.mark.skipif(not TRIED, reason="`make test-clients` tries RocketMQ's own clients")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("clients"), shards=2, replicas=1, mode="async") as found:
        yield found


def _done(command: list[str], authority: Path) -> str:
    done = subprocess.run(
        command, env=environment(authority), cwd=ROOM, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.timeout(INSTALL_S + 200)
@pytest.mark.parametrize("transport", ["plain", "tls"])
@pytest.mark.parametrize("language", TRIED)
def test_a_client_sends_and_receives_all_that_it_can(language: str, transport: str, served: Gateway) -> None:
    command = installed(language)("scenarios")
    arguments = [served.node.address, *(["tls"] if transport == "tls" else [])]
    assert f"{language}: ok" in _done([*command, *arguments], served.authority)


@pytest.mark.timeout(INSTALL_S + 200)
@pytest.mark.skipif("python" not in TRIED, reason="the Python client is not tried")
def test_the_protocol_is_the_python_clients(tmp_path: Path) -> None:
    assert "the same" in _done([*installed("python")("same_protocol"), str(WIRE)], tmp_path)
