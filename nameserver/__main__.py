"""``python -m penstock.nameserver -c FILE``: a nameserver in the foreground."""

from __future__ import annotations

import sys

from penstock.runtime.process import server_arguments

from .server import run


def main(argv: list[str] | None = None) -> int:
    return run(*server_arguments(argv, "nameserver", "Serve routes in the foreground.", "namesrv.conf"))


if __name__ == "__main__":
    sys.exit(main())
