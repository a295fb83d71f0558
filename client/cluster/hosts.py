"""Addresses as records name them: this machine's, and a broker's."""

from __future__ import annotations

import functools
import ipaddress
import socket

from penstock.formats.record.layout import Host


def local_host(peer: str) -> Host:
    """This machine's address on the way to ``peer`` (``host:port``), as records name the sender; port 0.

    Nothing is sent. Without a route to the peer it is the loopback address.
    """
    host, _, port = peer.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return Host(ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]).packed, 0)
    except OSError:
        return Host(b"\x7f\0\0\x01", 0)


@functools.lru_cache(maxsize=1024)
def store_host_of(address: str) -> Host:
    """The host that a broker advertised as ``address`` stores in its records; names are looked up, IPv4 first."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return Host(b"\0\0\0\0", int(port))
    _, _, _, _, chosen = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return Host(ipaddress.ip_address(str(chosen[0]).partition("%")[0]).packed, int(port))
