"""What breaks networks and disks does so, heals, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.drill.lab import disks, network
from penstock.drill.lab.actions import unsynced
from penstock.drill.lab.disks import SlowSyncs, SmallDisk
from penstock.drill.lab.network import Network
from penstock.drill.lab.schedule import DrillFailed

SERVER = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("0.0.0.0", 9))
    print("ready", flush=True)
    while True:
        data, sender = server.recvfrom(100)
        print(data.decode(), flush=True)
        server.sendto(data, sender)
"""
CLIENT = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(0.3)
    client.sendto(sys.argv[2].encode(), (sys.argv[1], 9))
    try:
        client.recvfrom(100)
    except TimeoutError:
        sys.exit(1)
"""


@pytest.fixture
def links() -> Iterator[Network]:
    if why := network.why_not():
        pytest.skip(why)
    made = Network(["a", "b", "c"])
    made.make()
    try:
        yield made
    finally:
        made.close()
        assert made.left() == []


def hears_answer(links: Network, client: str, server: str, text: str) -> bool:
    command = [*links.wrap(client), sys.executable, "-c", CLIENT, links.address(server), text]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def test_packets_are_lost_in_the_directions_that_are_cut_and_in_no_others(links: Network) -> None:
    command = [*links.wrap("a"), sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "ready\n"
            assert hears_answer(links, "b", "a", "whole")
            links.cut("a", ["b"], inwards=False)
            assert not hears_answer(links, "b", "a", "answer lost")
            links.heal()
            links.cut("a", ["b"], outwards=False)
            assert not hears_answer(links, "b", "a", "question lost")
            assert hears_answer(links, "c", "a", "another one")
            links.heal()
            links.slow("b", 512)
            assert hears_answer(links, "b", "a", "slow")
            links.heal()
            assert hears_answer(links, "b", "a", "healed")
        finally:
            server.kill()
        seen = server.stdout.read().split("\n")
    assert seen == ["whole", "answer lost", "another one", "slow", "healed", ""]


def test_a_network_without_privileges_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert network.why_not() == "network namespaces need root"
    assert disks.why_no_small_disk() == "mounting a small file system needs root"


def test_tools_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert network.why_not() == "ip, tc is not installed (iproute2)"
    assert "strace" in disks.why_no_slow_disk()


def test_a_full_disk_takes_nothing_until_it_is_emptied(tmp_path: Path) -> None:
    if why := disks.why_no_small_disk():
        pytest.skip(why)
    disk = SmallDisk(tmp_path / "small", size_bytes=1 << 20)
    try:
        disk.mount()
        assert disk.fill() > 900_000
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "small" / "more").write_bytes(b"x" * 4096)
        disk.empty()
        (tmp_path / "small" / "more").write_bytes(b"x" * 4096)
    finally:
        disk.close()
    assert not disk.is_mounted


def test_a_process_is_traced_while_its_syncs_are_slow_and_not_afterwards() -> None:
    if why := disks.why_no_slow_disk():
        pytest.skip(why)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        slow = SlowSyncs(process.pid, 100)
        slow.start()
        slow.stop()
        slow.stop()
        assert "TracerPid:\t0\n" in Path(f"/proc/{process.pid}/status").read_text()
        process.communicate(b"\n")
    assert process.returncode == 0


def test_a_process_that_is_gone_cannot_be_slowed_down() -> None:
    if why := disks.why_no_slow_disk():
        pytest.skip(why)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(DrillFailed, match="could not attach"):
        SlowSyncs(process.pid, 100).start()


def test_a_small_file_that_is_just_being_replaced_is_not_put_back_by_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    files = [tmp_path / "config" / name for name in ("topics.json", "topics.json.bak")]
    for path in files:
        path.write_bytes(b"{}")
    reads = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == files[0]:
            path.unlink()
        return reads(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    lab: Any = SimpleNamespace(state=lambda _: SimpleNamespace(store_path=tmp_path))
    assert unsynced(lab, ["broker-a-0"]) == {files[1]: b"{}"}
