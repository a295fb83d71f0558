"""``python -m penstock.broker -c FILE``: a broker in the foreground."""

from __future__ import annotations

import argparse
import faulthandler
import sys

from .process import run


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run; the exit code."""
    faulthandler.enable()  # a file cut short under the mapping is a SIGBUS: let the log say so
    parser = argparse.ArgumentParser(prog="penstock broker", description="Serve one broker in the foreground.")
    parser.add_argument("-c", "--config", metavar="FILE", help="broker.conf; without it everything has its default")
    parser.add_argument("--ignore-unsupported", metavar="KEYS", default="", help="start in spite of these, with commas")
    given = parser.parse_args(argv)
    return run(given.config, [name.strip() for name in given.ignore_unsupported.split(",") if name.strip()])


if __name__ == "__main__":
    sys.exit(main())
