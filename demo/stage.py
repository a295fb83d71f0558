"""What every demo plays on: a directory of its own, a cluster in it, and a clock beside what is said."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.output import ProgressLine

if TYPE_CHECKING:
    from penstock.deploy import LocalCluster

MARKER = ".penstock-demo"


def fresh(folder: Path) -> Path:
    """``folder``, empty but for our marker. Only a directory that an earlier demo made is emptied.

    Raises:
        DeployUsage: it holds something else.
    """
    from penstock.bench.health import open_cluster
    from penstock.deploy import DeployUsage

    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise DeployUsage(f"{folder} is not empty and no earlier demo made it: use another --dir")
        if (folder / "cluster" / "cluster.json").exists():
            open_cluster(str(folder / "cluster")).down()
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Made by a demo of Penstock, which empties this directory when it starts.\n")
    return folder


class Stage:
    """One run of a demo in ``folder``."""

    def __init__(self, folder: Path) -> None:
        from penstock.bench.health import open_cluster

        self._folder = folder
        self._progress = ProgressLine()
        self._began = time.monotonic()
        self._cluster: LocalCluster = open_cluster(str(folder / "cluster"), self._progress.show)
        self._namesrv = ""  # once the cluster is up

    def close(self) -> None:
        """End every process that was started."""
        self._progress.clear()
        if (self._cluster.directory / "cluster.json").exists():
            self._cluster.down()

    def _say(self, text: str) -> None:
        self._progress.clear()
        click.echo(f"[{time.monotonic() - self._began:5.1f} s] {text}", err=True)
