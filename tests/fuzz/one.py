"""``python -m tests.fuzz.one TARGET [libFuzzer's options] FOLDER…``: one target under libFuzzer, in this process."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType

import atheris

from tests.fuzz.targets import TARGETS

INSTRUMENTED = (
    "penstock.broker.config",
    "penstock.formats.sql92",
    "penstock.formats.checkpoint",
    "penstock.formats.epochs",
    "penstock.formats.record.compression",
    "penstock.formats.record.layout",
    "penstock.formats.record.properties",
    "penstock.formats.trace",
    "penstock.nameserver.config",
    "penstock.proto.frames",
    "penstock.runtime.conf",
    "penstock.runtime.security.signatures",
)
"""Modules whose branches lead the search; not kernels, which are compiled from what they are."""


def main() -> None:
    """Fuzz until the time is up, or something is found."""
    for module in INSTRUMENTED:
        for function in _functions_of(importlib.import_module(module)):
            atheris.instrument_func(function)
    logging.disable(logging.CRITICAL)
    target = TARGETS[name := sys.argv.pop(1)]
    sys.argv[0] = f"{sys.executable} -m tests.fuzz.one {name}"  # a merge of libFuzzer's calls itself by a shell
    atheris.Setup([*sys.argv, f"-max_len={target.bytes_max}"], target.check)
    atheris.Fuzz()


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that the module defines."""
    owners = [module, *(each for each in vars(module).values() if inspect.isclass(each))]
    for owner in owners:
        for each in vars(owner).values():
            function = each.__func__ if isinstance(each, (classmethod, staticmethod)) else each
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


if __name__ == "__main__":
    main()
