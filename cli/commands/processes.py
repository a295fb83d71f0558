"""``penstock nameserver``, ``broker``, ``gateway``: one process in the foreground. ``penstock version``."""

from __future__ import annotations

import os
import sys

import click

from penstock.proto import distribution

from ..options import json_option
from ..output import Answer


def _server(name: str, file: str, what: str) -> click.Command:
    """The command that becomes the server ``name``: signals and exit codes are then the server's own."""

    @click.command(name=name, help=f"Run one {what} in the foreground until SIGTERM or Ctrl-C.")
    @click.option("-c", "--config", metavar="FILE", help=f"{file}; without it everything has its default.")
    @click.option(
        "--ignore-unsupported",
        "ignored",
        default="",
        metavar="KEY[,KEY]",
        help="Start although these keys of the file, which RocketMQ's users rely on, do nothing here.",
    )
    def command(config: str | None, ignored: str) -> None:
        arguments = [sys.executable, "-m", f"penstock.{name}", "--ignore-unsupported", ignored]
        os.execv(sys.executable, [*arguments, "-c", config] if config else arguments)  # noqa: S606

    return command


nameserver = _server("nameserver", "namesrv.conf", "nameserver")
broker = _server("broker", "broker.conf", "broker")
gateway = _server("gateway", "gateway.conf", "gateway for RocketMQ 5's clients")


@click.command()
@json_option
def version(answer: Answer) -> None:
    """Print the version."""
    found = distribution.version()
    answer({"version": found}, f"penstock {found}")
