"""What gRPC's words for a connection that was not made mean."""

from __future__ import annotations

NEVER_CONNECTED = "failed to connect to all addresses"
"""Nobody was there: what was to be said is not said."""
_HANDSHAKES = (
    (("Method not found",), "the server there is of another kind or version (nameserver 9876, broker 10911): "),
    (("WRONG_VERSION_NUMBER",), "the port has no TLS: connect without it, or set tls.server.mode=enforcing there: "),
    (("CERTIFICATE_VERIFY_FAILED",), "the server's certificate is not accepted: "),
    (("Hostname Verification",), "the server's certificate is for another host name: "),
    (("is not in peer certificate",), "the server's certificate is for another host name: "),  # older gRPC's words
    (
        ("failed to connect", "Socket closed"),
        "the port ended the connection before anything was said: it may demand TLS, or a client's certificate: ",
    ),
)


def handshake_hint(detail: str) -> str:
    """What to do about a connection that gRPC says ``detail`` of, to stand before that; empty if nothing is known."""
    return next((said for words, said in _HANDSHAKES if all(word in detail for word in words)), "")
