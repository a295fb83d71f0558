"""Commands that are imported when they are used, so that ``penstock --help`` answers at once."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """A group whose commands are listed as ``name -> (module, attribute, one line of help)``."""

    def __init__(self, *args: object, commands_in: dict[str, tuple[str, str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._commands_in.get(cmd_name)
        if place is None:
            return None
        command = getattr(importlib.import_module(place[0]), place[1])
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table's lines; imports nothing."""
        rows = [(name, place[2]) for name, place in self._commands_in.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
