"""Standard streams that a command is started without, or whose reader or disk goes away."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Output(io.FileIO):
    """Standard output that is named by its errors, as files are."""

    def write(self, data: Any) -> int:
        """Write what the descriptor takes; the count of bytes."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


def prepare() -> None:
    """Make errors of standard output name it, and put a null device in place of each stream that is missing.

    Nothing is read from that, and what is written to standard output is an error: nobody would get it. Without it the
    next file or connection would be given the stream's descriptor.
    """
    for name, access, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, access), mode, closefd=False))  # noqa: SIM115  open to the end
    plain = sys.stdout
    if type(plain) is io.TextIOWrapper:  # tests have others
        plain.flush()  # what a program has printed that calls a command comes first
        output = _Output(plain.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            output if plain.write_through else io.BufferedWriter(output),  # unbuffered, as PYTHONUNBUFFERED asks
            plain.encoding,
            plain.errors,
            line_buffering=plain.line_buffering,
            write_through=plain.write_through,
        )


def drop_unwritten() -> None:
    """Have the program's exit not try again what standard output has not taken."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
