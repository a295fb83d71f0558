"""``penstock nameserver``, ``broker``, ``gateway``: one process in the foreground. ``penstock version``."""

from __future__ import annotations

import os
import sys

import click

from penstock.proto import distribution

from ..options import json_option
from ..output import print_json

_ignore = click.option(
    "--ignore-unsupported",
    "ignored",
    default="",
    metavar="KEY[,KEY]",
    help="Start although these keys of the file, which RocketMQ's users rely on, do nothing here.",
)


def _become(module: str, config: str | None, ignored: str) -> None:
    """Replace this process by the server: signals and exit codes are then the server's own."""
    arguments = [sys.executable, "-m", module, "--ignore-unsupported", ignored]
    os.execv(sys.executable, [*arguments, "-c", config] if config else arguments)  # noqa: S606


@click.command()
@click.option("-c", "--config", metavar="FILE", help="namesrv.conf; without it everything has its default.")
@_ignore
def nameserver(config: str | None, ignored: str) -> None:
    """Run one nameserver in the foreground until SIGTERM or Ctrl-C."""
    _become("penstock.nameserver", config, ignored)


@click.command()
@click.option("-c", "--config", metavar="FILE", help="broker.conf; without it everything has its default.")
@_ignore
def broker(config: str | None, ignored: str) -> None:
    """Run one broker in the foreground until SIGTERM or Ctrl-C."""
    _become("penstock.broker", config, ignored)


@click.command()
@click.option("-c", "--config", metavar="FILE", help="gateway.conf; without it everything has its default.")
@_ignore
def gateway(config: str | None, ignored: str) -> None:
    """Run one gateway for RocketMQ 5's clients in the foreground until SIGTERM or Ctrl-C."""
    _become("penstock.gateway", config, ignored)


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": distribution.version()})
    else:
        print(f"penstock {distribution.version()}")
