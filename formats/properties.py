"""What producers may put into messages: limits, and property names that are not theirs to choose.

The names themselves and the property string's form: :mod:`.record.properties`.
"""

from __future__ import annotations

from penstock.proto.names import PRODUCER_PROPERTY

from .record.producer_mark import MARK_BYTES_MAX
from .record.properties import KEYS, PROPERTIES_BYTES_MAX, RECORD_CRC, SHARDING_KEY, TAGS, UNIQ_KEY

BODY_BYTES_MAX = 4 * 1024 * 1024
"""The largest body that brokers take by default."""

MARK_ROOM = 128
"""Left free in every property string: the first record of a batch holds the producer's mark as well."""
assert MARK_BYTES_MAX <= MARK_ROOM

PROPERTIES_ROOM = PROPERTIES_BYTES_MAX - MARK_ROOM
"""What the properties of a message may take, as its sender gives them."""

RESERVED = frozenset({TAGS, KEYS, UNIQ_KEY, SHARDING_KEY, PRODUCER_PROPERTY, RECORD_CRC})
"""Property names that users give through their own arguments, or not at all."""
