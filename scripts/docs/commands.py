"""The page of commands, from click's own descriptions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from penstock.cli.main import cli

from .markdown import NOTE, code, table


def page() -> str:
    head = (
        f"{NOTE}\n# Commands\n\nWith `--json` a command prints one JSON document and nothing else; `send`, `tail`, "
        "`dlq show` and `bench` print one on a line for each message or case. Exit codes: 0 done, "
        "1 failed, 2 bad usage or configuration, 130 interrupted, 143 ended by SIGTERM.\n"
    )
    return "\n".join([head, *_described(cli, "penstock", 1)])


def _described(command: click.Command, words: str, level: int) -> Iterator[str]:
    """The command's part of the page, and those of its own commands."""
    with click.Context(command, info_name=words) as context:
        if level > 1:
            yield f"{'#' * min(level, 4)} {words}\n\n{_text(command)}"
            if not isinstance(command, click.Group):
                yield f"```\n{' '.join([words, *command.collect_usage_pieces(context)])}\n```\n"
        options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
        if rows := [_option(each) for each in options if not {"--help", "--version"} & set(each.opts)]:
            yield table(("Option", "Default", "Meaning"), rows)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                if not child.hidden:
                    yield from _described(child, f"{words} {name}", level + 1)


def _text(command: click.Command) -> str:
    text = inspect.cleandoc((command.help or "").partition("\f")[0]).replace("\b\n", "")
    return text.replace("``", "`") + "\n"


def _option(option: click.Option) -> tuple[str, str, str]:
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    if option.required:
        default = "required"
    elif option.is_flag or option.default is None or callable(option.default) or "UNSET" in repr(option.default):
        default = ""
    else:
        default = code(str(option.default))
    kind = option.type
    values = f" ({', '.join(map(str, kind.choices))})" if isinstance(kind, click.Choice) else ""
    return names, default, (option.help or "") + values
