"""``python -m penstock.gateway -c FILE``: a gateway in the foreground."""

from __future__ import annotations

import sys

from penstock.runtime.process import server_arguments

from .server import run


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run; the exit code."""
    return run(*server_arguments(argv, "gateway", "Serve RocketMQ 5's clients.", "gateway.conf"))


if __name__ == "__main__":
    sys.exit(main())
