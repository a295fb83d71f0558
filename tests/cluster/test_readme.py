"""The README is true: its commands and its program run as they stand there, on a cluster of free ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench.health import open_cluster
from penstock.proto.distribution import DISTRIBUTION
from tests.support.cluster.failover import end_all

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SET_UP = re.compile(r"(make|pip) ")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    cluster = tmp_path / "tour"
    yield cluster
    if cluster.exists():
        end_all(open_cluster(str(cluster)))


def test_every_command_and_program_runs(folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    said = ""
    for language, text in BLOCKS:
        if SET_UP.match(text):
            continue
        block = text.replace("/tmp/tour", str(folder)).replace("cluster up", "cluster up --base-port 0")
        if folder.exists():
            nameservers = open_cluster(str(folder)).plan.nameserver_addresses
            environment["PENSTOCK_NAMESRV"] = nameservers
            block = block.replace("127.0.0.1:9876", nameservers)
        command = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
        done = subprocess.run([*command, block], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    assert re.search(r"^lost, duplicates +0, 0", said, re.MULTILINE), said
    assert "one more" in said


def test_what_sets_up_is_there() -> None:
    targets = (ROOT / "Makefile").read_text()
    lines = [line for _, text in BLOCKS if SET_UP.match(text) for line in text.splitlines()]
    for line in lines:
        found = re.match(r"make ([a-z-]+)", line)
        assert found is None or re.search(rf"^{found[1]}:", targets, re.MULTILINE), line
    assert f"pip install {DISTRIBUTION}" in README


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120
    paragraphs = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    prose = [text for text in paragraphs if text.strip() and not text.lstrip().startswith(("|", "-", "#", "!"))]
    assert [text for text in prose if len(text.strip().splitlines()) > 3] == []
