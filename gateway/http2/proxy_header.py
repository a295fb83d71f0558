"""HAProxy's PROXY header, by which a load balancer says for whom it has opened a connection.

It stands before everything else. Version 1 is a line, ``PROXY TCP4 SOURCE DESTINATION PORT PORT`` or
``PROXY UNKNOWN …``. Version 2:

| Offset | Size | Type | Meaning |
|---|---|---|---|
| 0 | 12 | bytes | the signature |
| 12 | 1 | u8 | 0x20: the balancer speaks for itself, 0x21: for another |
| 13 | 1 | u8 | 0x11: TCP over IPv4, 0x21: over IPv6; others say no address |
| 14 | 2 | u16 | how many bytes follow |
| 16 | 4 or 16 | bytes | source address; the destination's behind it, then both ports as u16, and perhaps more |

Source: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

from penstock.runtime.listening import join_address

LINE_MAX: Final = 107
REST_MAX: Final = 4096
_LINE: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD: Final = struct.Struct(">12sBBH")
_ITSELF, _ANOTHER = 0x20, 0x21
HEADER_BYTES_MAX: Final = _HEAD.size + REST_MAX
_ADDRESSES: Final = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}


class Header(NamedTuple):
    """What a connection begins with."""

    length: int
    """0: it begins without one."""
    source: str = ""
    """``ip:port``, of IPv6 ``[ip]:port``; empty: it says none."""


def header_of(first: bytes) -> Header | None:
    """The header that these bytes begin with; None: more must come before that can be told.

    Raises:
        ValueError: they begin like one, and are none.
    """
    if first.startswith(_LINE):
        return _line(first)
    if first.startswith(_SIGNATURE):
        return _binary(first)
    return None if _LINE.startswith(first) or _SIGNATURE.startswith(first) else Header(0)


def _line(first: bytes) -> Header | None:
    line, end, _ = first[:LINE_MAX].partition(b"\r\n")
    if not end:
        if len(first) >= LINE_MAX:
            raise ValueError("a PROXY line that does not end")
        return None
    length = len(line) + len(end)
    kind, *words = line.decode("ascii").split(" ")[1:]
    if kind == "UNKNOWN":
        return Header(length)
    if kind not in ("TCP4", "TCP6") or len(words) != 4 or not words[2].isdecimal():
        raise ValueError("a PROXY line without its five words")
    return Header(length, _source(ipaddress.ip_address(words[0]), int(words[2])))


def _binary(first: bytes) -> Header | None:
    if len(first) < _HEAD.size:
        return None
    _, command, family, rest = _HEAD.unpack_from(first)
    if command not in (_ITSELF, _ANOTHER) or rest > REST_MAX:
        raise ValueError(f"a PROXY header with command {command:#x} and {rest} bytes")
    length = _HEAD.size + rest
    if len(first) < length:
        return None
    form = _ADDRESSES.get(family)
    if command == _ITSELF or form is None:
        return Header(length)
    if rest < form.size:
        raise ValueError(f"a PROXY header with {rest} bytes of addresses")
    address, _, port, _ = form.unpack_from(first, _HEAD.size)
    return Header(length, _source(ipaddress.ip_address(address), port))


def _source(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    if port > 65535:
        raise ValueError(f"port {port}")
    if address.version == 6 and address.scope_id is not None:  # any text at all
        raise ValueError("an address with a scope, which is another machine's")
    return join_address(str(address), port)
