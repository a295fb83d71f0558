"""Options that many commands share."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .output import Answer

DEFAULT_NAMESRV = "127.0.0.1:9876"

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # older releases of click have no type parameter


json_option = click.option(
    "--json",
    "answer",
    is_flag=True,
    callback=lambda _context, _option, is_asked: Answer(is_asked),
    help="One JSON document instead of a table.",
)
"""``--json``: one JSON document on standard output and nothing else there; the command gets an :class:`.Answer`."""

namesrv_option = click.option(
    "--namesrv",
    envvar="PENSTOCK_NAMESRV",
    default=DEFAULT_NAMESRV,
    show_default=True,
    metavar="HOST:PORT[;…]",
    help="Nameservers; also PENSTOCK_NAMESRV.",
)
dir_option = click.option(
    "--dir",
    "directory",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The cluster's directory.",
)


def asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--namesrv`` and ``--json``, of a command that is called with an ``Admin`` and an ``Answer``."""

    @namesrv_option
    @json_option
    @functools.wraps(function)
    def command(*, namesrv: str, **options: Any) -> Any:
        from penstock.client import Admin

        with Admin(namesrv) as admin:
            return function(admin, **options)

    return command


class Timestamp(_ParamType):
    """Milliseconds since 1970, an ISO time (local unless it says otherwise), or ``5m``/``2h``/``1d`` ago."""

    name = "TIME"
    _UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # noqa: RUF012  read only

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text.isascii() and text.isdigit():
            return int(text)
        if text[:-1].isdigit() and text[-1:] in self._UNITS:
            return int(time.time() * 1000) - int(text[:-1]) * self._UNITS[text[-1]] * 1000
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        except ValueError:
            self.fail(f"{text!r} is no time: give 2024-05-01T12:00, milliseconds since 1970, or 10m for 10 minutes ago")


class ConsumeFrom(Timestamp):
    """``first``, ``last`` or a time."""

    name = "first|last|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word, or milliseconds since 1970."""
        return value if value in ("first", "last") else super().convert(value, param, ctx)


def queue_place(text: str) -> tuple[str, int]:
    """``broker-a:0`` as the broker group and the queue's number; the group is empty where ``text`` names none."""
    broker_name, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit()):
        raise click.BadParameter(f"{text!r}: give it as broker-a:0", param_hint="--queue")
    return broker_name, int(number)


def key_values(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A click callback: ``("a=1", "b=2")`` as a dictionary."""
    found: dict[str, str] = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{value!r}: give it as key=value", param=option)
        found[name.strip()] = text.strip()
    return found


def compose(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several option decorators as one, listed in the order of the help text."""
    return lambda function: functools.reduce(lambda made, decorator: decorator(made), reversed(decorators), function)
