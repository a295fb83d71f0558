"""Who calls: what the metadata of every call says, and its signature.

Source of the signature: RocketMQ's clients, as in :mod:`penstock.runtime.security.signatures`. Clients sign their local
time and call it UTC, so a date says nothing, and none is refused for its age.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.gateway.http2.call import Call
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.runtime.security.access import Access
from penstock.runtime.security.signatures import AUTHORIZATION, DATE_TIME

from .status import Refusal

CLIENT_ID_LENGTH_MAX: Final = 255
DEADLINE_S: Final = 30.0
"""Of a call that came without one."""
TIMEOUT_S: Final = 10.0
"""Of what a call asks of a broker."""
_HURRY: Final = 0.9
NODE_JS: Final = "HTTP"
"""What the Node.js client calls its language."""
_CREDENTIAL = re.compile(r"Credential=([^/,\s]*)", re.ASCII)
_SIGNATURE = re.compile(r"Signature=([0-9A-Fa-f]{40})(?![^,\s])", re.ASCII)
_TEXT_MAX: Final = 1024
_NOBODYS: Final = "no user has this"


@dataclass(slots=True)
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
    def timeout_s(self) -> float:
        """How long a broker may be asked, so that the answer is there before the client gives up."""
        return max(min(self.deadline_s, TIMEOUT_S) * _HURRY, 0.1)

    @property
    def is_node_js(self) -> bool:
        return self.language == NODE_JS


def caller_of(call: Call, access: Access | None) -> Caller:
    """Who makes this call. Raises Refusal: CLIENT_ID_REQUIRED, UNAUTHORIZED."""
    found = call.metadata
    if access is not None:
        _authenticate(found, access)
    client_id = found.get("x-mq-client-id", "").strip()
    if not client_id:
        raise Refusal(Code.CLIENT_ID_REQUIRED, "client id cannot be empty: give x-mq-client-id")
    if len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise Refusal(Code.BAD_REQUEST, f"client id of {len(client_id)} characters: at most {CLIENT_ID_LENGTH_MAX}")
    left_s = call.time_remaining()
    return Caller(
        client_id=client_id,
        language=found.get("x-mq-language", "")[:_TEXT_MAX],
        namespace=found.get("x-mq-namespace", "")[:_TEXT_MAX],
        host=call.host,
        deadline_s=DEADLINE_S if left_s is None else min(max(left_s, 0.0), 24 * 3600.0),
    )


def _authenticate(found: Mapping[str, str], access: Access) -> None:
    header, date = found.get(AUTHORIZATION, "")[:_TEXT_MAX], found.get(DATE_TIME, "")[:_TEXT_MAX]
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
