"""``python -m penstock.broker -c FILE``: a broker in the foreground."""

from __future__ import annotations

import faulthandler
import sys

from penstock.runtime.process import server_arguments

from .process import run


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run; the exit code."""
    faulthandler.enable()  # a file cut short under the mapping is a SIGBUS: let the log say so
    return run(*server_arguments(argv, "broker", "Serve one broker in the foreground.", "broker.conf"))


if __name__ == "__main__":
    sys.exit(main())
