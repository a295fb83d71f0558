"""Who calls: what the metadata of every call says, and its signature.

Source of the signature: RocketMQ's clients, as in :mod:`penstock.runtime.security.signatures`. Clients sign their local
time and call it UTC, so a date says nothing, and none is refused for its age.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.runtime.security.access import Access
from penstock.runtime.security.signatures import AUTHORIZATION, DATE_TIME

from .status import Refusal

CLIENT_ID_LENGTH_MAX: Final = 255
NO_HOSTS: Final[Mapping[str, str]] = MappingProxyType({})
NODE_JS: Final = "HTTP"
"""What the Node.js client calls its language."""
_CREDENTIAL = re.compile(r"Credential=([^/,\s]*)", re.ASCII)
_SIGNATURE = re.compile(r"Signature=([0-9A-Fa-f]{40})", re.ASCII)
_TEXT_MAX: Final = 1024
_NOBODYS: Final = "no user has this"


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that made a call."""

    client_id: str
    language: str
    namespace: str
    """Of resources that name none."""
    host: str
    """``ip:port`` of its end of the connection."""
    deadline_s: float
    """Seconds that are left for the call."""

    @property
    def is_node_js(self) -> bool:
        """True for the Node.js client."""
        return self.language == NODE_JS


def caller_of(
    context: Any, access: Access | None, hosts: Mapping[str, str] = NO_HOSTS, default_s: float = 30.0
) -> Caller:
    """Who makes the call with this context; ``hosts``: what to say of some of gRPC's peers instead.

    Raises:
        Refusal: CLIENT_ID_REQUIRED, UNAUTHORIZED.
    """
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            found[key] = value[:_TEXT_MAX]
    if access is not None:
        _authenticate(found, access)
    client_id = found.get("x-mq-client-id", "").strip()
    if not client_id:
        raise Refusal(Code.CLIENT_ID_REQUIRED, "client id cannot be empty: give x-mq-client-id")
    if len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise Refusal(Code.BAD_REQUEST, f"client id of {len(client_id)} characters: at most {CLIENT_ID_LENGTH_MAX}")
    left_s = context.time_remaining()
    return Caller(
        client_id=client_id,
        language=found.get("x-mq-language", ""),
        namespace=found.get("x-mq-namespace", ""),
        host=hosts.get(peer := context.peer()) or _host(peer),
        deadline_s=default_s if left_s is None else min(max(left_s, 0.0), 24 * 3600.0),
    )


def _authenticate(found: dict[str, str], access: Access) -> None:
    header, date = found.get(AUTHORIZATION, ""), found.get(DATE_TIME, "")
    credential, signature = _CREDENTIAL.search(header), _SIGNATURE.search(header)
    access_key = credential[1] if credential is not None else ""
    if not access_key:
        raise Refusal(Code.UNAUTHORIZED, "username cannot be null")
    secret = access.secret_of(access_key)
    digest = hmac.digest((secret or _NOBODYS).encode(), date.encode(), "sha1")
    is_proven = hmac.compare_digest(digest, bytes.fromhex(signature[1]) if signature is not None else b"")
    if secret is None:
        raise Refusal(Code.UNAUTHORIZED, f"User:{access_key[:128]} is not found.")
    if not is_proven:
        raise Refusal(Code.UNAUTHORIZED, "check signature failed.")


def _host(peer: str) -> str:
    """``ipv4:1.2.3.4:5`` or ``ipv6:%5B::1%5D:5`` as ``1.2.3.4:5`` or ``[::1]:5``."""
    kind, _, rest = peer.partition(":")
    return rest.replace("%5B", "[").replace("%5D", "]") if kind in ("ipv4", "ipv6") and rest else "127.0.0.1:0"
