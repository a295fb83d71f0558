"""``python -m penstock.gateway -c FILE``: a gateway in the foreground."""

from __future__ import annotations

import argparse
import sys

from .server import run


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run; the exit code."""
    parser = argparse.ArgumentParser(prog="penstock gateway", description="Serve RocketMQ 5's clients.")
    parser.add_argument("-c", "--config", metavar="FILE", help="gateway.conf; without it everything has its default")
    parser.add_argument("--ignore-unsupported", metavar="KEYS", default="", help="start in spite of these, with commas")
    given = parser.parse_args(argv)
    return run(given.config, [name.strip() for name in given.ignore_unsupported.split(",") if name.strip()])


if __name__ == "__main__":
    sys.exit(main())
