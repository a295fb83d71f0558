"""How much a request may hold is looked at before it is decoded."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message as Wire
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.v2.names import resource_in
from penstock.gateway.v2.wire.definition_pb2 import Message, Resource
from penstock.gateway.v2.wire.service_pb2 import SendMessageRequest
from penstock.proto.errors import InvalidArgument, MessageTooLarge, PenstockError
from penstock.proto.requests import FIELDS_AT_ONCE_MAX, decoded
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, FetchHeader
from tests.support.hostile.values import crowded

BYTES_MAX = 64 << 20


@pytest.mark.parametrize("kind", [SendMessageRequest, CommitOffsetsRequest, FetchHeader])
def test_more_messages_than_are_allowed_are_not_decoded_however_deep_they_lie(kind: type[Wire]) -> None:
    contents = [*crowded(kind.DESCRIPTOR, 4 * FIELDS_AT_ONCE_MAX, depth=4)]
    assert contents
    for content in contents:
        for ending in (b"", b"\x0a"):  # a decoder would find out only behind all of them that this is no message
            with pytest.raises(MessageTooLarge, match=f"more than {FIELDS_AT_ONCE_MAX} fields"):
                decoded(kind, content + ending, BYTES_MAX)


def test_as_many_as_are_allowed_are_taken_and_large_bodies_count_as_one_field() -> None:
    request = SendMessageRequest()
    for _ in range(FIELDS_AT_ONCE_MAX // 4):
        message = request.messages.add(body=b"x" * 300)  # itself, its body, its topic, the name of that
        message.topic.name = "a topic"
    assert decoded(SendMessageRequest, request.SerializeToString(), BYTES_MAX) == request
    request.messages.add()
    with pytest.raises(MessageTooLarge):
        decoded(SendMessageRequest, request.SerializeToString(), BYTES_MAX)


def test_a_request_that_is_too_long_is_not_looked_at() -> None:
    with pytest.raises(MessageTooLarge, match="at most 10"):
        decoded(FetchHeader, bytes(11), 10)


_pieces = st.sampled_from(
    [b"\x0a\x00", b"\x0a\x80", b"\x08\xff\xff\x01", b"\x0d1234", b"\x09" + bytes(8), b"\x0b", b"\x0f"]
)


@given(st.lists(_pieces | st.binary(max_size=20), min_size=1, max_size=40), st.integers(1, 60))
def test_noise_is_refused_by_name_whatever_it_looks_like(pieces: list[bytes], most: int) -> None:
    for content in (b"".join(pieces), b"".join(pieces) * 4):
        try:
            decoded(SendMessageRequest, memoryview(content), BYTES_MAX, most)
        except PenstockError as error:
            assert isinstance(error, InvalidArgument | MessageTooLarge)


def test_what_is_unknown_is_dropped_wherever_it_stands() -> None:
    unknown = b"\xfa\x3f\x04what"
    topic = Resource(name="topic").SerializeToString() + unknown
    message = b"\x0a" + bytes([len(topic)]) + topic + unknown
    content = b"\x0a" + bytes([len(message)]) + message + unknown
    assert SendMessageRequest.FromString(content).SerializeToString() == content
    expected = SendMessageRequest(messages=[Message(topic=Resource(name="topic"))])
    assert decoded(SendMessageRequest, content, BYTES_MAX).SerializeToString() == expected.SerializeToString()
    found = resource_in(topic)
    assert found is not None
    assert found.SerializeToString() == Resource(name="topic").SerializeToString()
