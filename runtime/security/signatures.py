"""Signed calls, as RocketMQ 5's gRPC clients sign theirs.

Two entries of a call's metadata::

    x-mq-date-time   20240501T120000Z
    authorization    MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX

HEX is the HMAC-SHA1 of the date's text with the access key's secret. A signature says who calls and not what: whoever
sees one can use it until it is too old, so it belongs into TLS. Unlike RocketMQ's clients, whose dates are in local
time, ours are in UTC, and servers refuse one that is not of these minutes.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock.proto.errors import Unauthorized

from .credentials import Credentials

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
AGE_S_MAX: Final = 300
"""How far a signature's date and the server's clock may be apart, in either direction."""

_DATE = "%Y%m%dT%H%M%SZ"
_HEADER = re.compile(
    rf"MQv2-HMAC-SHA1 Credential=([^/,\s]{{1,128}})(?:/[^,]*)?, SignedHeaders={DATE_TIME}, "
    r"Signature=([0-9A-Fa-f]{40})",
    re.ASCII,
)

Metadata = tuple[tuple[str, str], ...]


class Signer:
    """The metadata of calls. A signature holds for a second's calls, so a call costs a look at the clock."""

    def __init__(self, credentials: Credentials, wall_s: Callable[[], float] = time.time) -> None:
        self._credentials = credentials
        self._wall_s = wall_s
        self._made: tuple[int, Metadata] = (-1, ())  # replaced as a whole: threads share it

    def metadata(self) -> Metadata:
        """For a call that is made now."""
        second = int(self._wall_s())
        made_at, metadata = self._made
        if made_at != second:
            metadata = signed(self._credentials, second)
            self._made = second, metadata
        return metadata


def signed(credentials: Credentials, at_s: int) -> Metadata:
    date = datetime.fromtimestamp(at_s, UTC).strftime(_DATE)
    signature = _digest(credentials.secret_key, date).hex()
    return (
        (DATE_TIME, date),
        (
            AUTHORIZATION,
            f"MQv2-HMAC-SHA1 Credential={credentials.access_key}, SignedHeaders={DATE_TIME}, Signature={signature}",
        ),
    )


class Claim(NamedTuple):
    """Who a caller says it is, and its proof."""

    access_key: str
    date: str
    signature: bytes

    def is_proven_by(self, secret_key: str) -> bool:
        """True if ``secret_key`` made the signature. Takes as long for a wrong signature as for a right one."""
        return hmac.compare_digest(_digest(secret_key, self.date), self.signature)


def claim_of(metadata: Iterable[tuple[str, Any]] | None, now_s: float) -> Claim:
    """What a call's metadata claims.

    Raises:
        Unauthorized: nothing, or nothing that can be read, or it is not of these minutes.
    """
    found = {key: value for key, value in metadata or () if key in (AUTHORIZATION, DATE_TIME)}
    header, date = found.get(AUTHORIZATION), found.get(DATE_TIME)
    if not isinstance(header, str) or not isinstance(date, str):
        raise Unauthorized(
            "the call is not signed, and this server takes no others: give credentials (commands: "
            "PENSTOCK_CREDENTIALS_FILE)"
        )
    parts = _HEADER.fullmatch(header)
    if parts is None:
        raise Unauthorized(f"the call's {AUTHORIZATION} is not of the form MQv2-HMAC-SHA1 Credential=…, Signature=…")
    try:
        signed_s = datetime.strptime(date, _DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise Unauthorized(f"the call's {DATE_TIME} is not of the form 20240501T120000Z: {date[:40]!r}") from None
    if abs(now_s - signed_s) > AGE_S_MAX:
        raise Unauthorized(
            f"access key {parts[1]!r}: the call was signed at {date}, more than {AGE_S_MAX} s from this server's "
            f"time, {datetime.fromtimestamp(now_s, UTC).strftime(_DATE)}: set the clocks"
        )
    return Claim(parts[1], date, bytes.fromhex(parts[2]))


def _digest(secret_key: str, date: str) -> bytes:
    return hmac.digest(secret_key.encode(), date.encode(), "sha1")
