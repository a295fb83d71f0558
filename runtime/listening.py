"""Opening a server's port with an error that says what is wrong."""

from __future__ import annotations

import contextlib
import socket

import grpc.aio

from penstock.proto.errors import ConfigError

from .security.certificates import ServerTls


def listen(server: grpc.aio.Server, host: str, port: int, key: str, tls: ServerTls | None = None) -> int:
    """Let ``server`` listen on ``host:port``, and return the port: the system's choice when ``port`` is 0.

    With ``tls`` the port takes nothing else.

    gRPC's own error names neither address nor cause, so the port is tried with a plain socket first.

    Raises:
        ConfigError: the address is taken, not this machine's, or not allowed; names ``key``, the setting.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shown = join_address(host, port)
    try:
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)  # two sockets may be bound to one port; only one may listen
    except OSError as error:
        raise cannot_listen(key, host, port, error) from error
    try:
        if tls is None:
            return server.add_insecure_port(shown)
        return server.add_secure_port(shown, tls.server_credentials())
    except RuntimeError as error:
        raise ConfigError(f"{key}: cannot listen on {shown}: {error}") from error


def cannot_listen(key: str, host: str, port: int, error: OSError) -> ConfigError:
    """The error that says so; ``key``: the setting."""
    return ConfigError(f"{key}: cannot listen on {join_address(host, port)}: {error.strerror or error}")


def join_address(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
