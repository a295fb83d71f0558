"""Stands in for a nameserver or broker: listens on listenPort until SIGTERM or SIGUSR1; settings make it misbehave."""

from __future__ import annotations

import signal
import socket
import sys
import types


def main(path: str) -> int:
    with open(path) as source:
        pairs = [line.split("=", 1) for line in source if "=" in line and not line.startswith("#")]
    settings = {name.strip(): value.strip() for name, value in pairs}
    if settings.get("fail") == "yes":
        print("error: the store is locked", file=sys.stderr)
        return 2

    def end(_: int, __: types.FrameType | None) -> None:
        print("ended", flush=True)
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN if settings.get("stubborn") == "yes" else end)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", int(settings["listenPort"])))
        server.listen()
        print(f"listening as {sys.argv[0]}", flush=True)
        while True:
            server.accept()[0].close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[2]))
