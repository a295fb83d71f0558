"""``penstock nameserver`` and ``penstock broker``: one process in the foreground. ``penstock version``."""

from __future__ import annotations

import os
import sys

import click

from penstock.proto import distribution

from ..options import json_option
from ..output import print_json


def _become(module: str, config: str | None) -> None:
    """Replace this process by the server: signals and exit codes are then the server's own."""
    arguments = [sys.executable, "-m", module]
    os.execv(sys.executable, [*arguments, "-c", config] if config else arguments)  # noqa: S606


@click.command()
@click.option("-c", "--config", metavar="FILE", help="namesrv.conf; without it everything has its default.")
def nameserver(config: str | None) -> None:
    """Run one nameserver in the foreground until SIGTERM or Ctrl-C."""
    _become("penstock.nameserver", config)


@click.command()
@click.option("-c", "--config", metavar="FILE", help="broker.conf; without it everything has its default.")
def broker(config: str | None) -> None:
    """Run one broker in the foreground until SIGTERM or Ctrl-C."""
    _become("penstock.broker", config)


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": distribution.version()})
    else:
        print(f"penstock {distribution.version()}")
