"""Blocks of header fields: as the library ``hpack`` understands them, and whatever else comes."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder

from penstock.gateway.http2.frames import BEGIN, Status, trailers
from penstock.gateway.http2.headers import FIELDS_BYTES_MAX, TABLE_BYTES, HeaderDecoder, HeadersError, encoded

NAMES = [":method", ":path", ":scheme", ":status", "content-type", "te", "x-mq-client-id", "x-mq-date-time", "cookie"]
VALUES = ["POST", "/", "http", "200", "application/grpc", "trailers", "", "x" * 40, "7a0c!~^" * 30, "0" * 3000]


def fields_of(chosen: random.Random) -> list[tuple[str, str]]:
    values = [*VALUES, f"{chosen.getrandbits(64):x}"]
    return [(chosen.choice(NAMES), chosen.choice(values)) for _ in range(chosen.randrange(12))]


@pytest.mark.parametrize("seed", range(20))
def test_it_understands_what_another_encoder_writes(seed: int) -> None:
    print(f"seed {seed}")
    chosen = random.Random(seed)
    encoder, ours, theirs = Encoder(), HeaderDecoder(), Decoder()
    for _ in range(200):
        if chosen.random() < 0.05:
            encoder.header_table_size = chosen.randrange(TABLE_BYTES + 1)
        block = encoder.encode(fields_of(chosen), huffman=chosen.random() < 0.5)
        assert ours.decode(block) == [(str(name), str(value)) for name, value in theirs.decode(block)]


@pytest.mark.parametrize("seed", range(20))
def test_a_block_with_wrong_bytes_is_refused_or_understood_and_nothing_else(seed: int) -> None:
    print(f"seed {seed}")
    chosen = random.Random(seed)
    encoder, ours = Encoder(), HeaderDecoder()
    refused = 0
    for _ in range(300):
        block = bytearray(encoder.encode(fields_of(chosen)))
        for _ in range(chosen.randrange(1, 4)):
            block.insert(chosen.randrange(len(block) + 1), chosen.getrandbits(8))
            del block[chosen.randrange(len(block)) :][: chosen.randrange(3)]
        try:
            ours.decode(bytes(block[: chosen.randrange(len(block) + 1)]))
        except HeadersError:
            refused += 1
            ours = HeaderDecoder()
    assert refused


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        (b"\x80", "field 0"),
        (b"\xbe", "ends too early, or is none"),  # the first of an empty table
        (b"\xff" + b"\x80" * 9 + b"\x01", "number without end"),
        (b"\x3f\xe2\x1f", "at most 4096"),
        (b"\x82\x20", "behind a field"),
        (b"\x00\x05abc", "within a field"),
        (b"\x00\x81\xff\x00", "Huffman"),  # the Huffman code of no text
        (b"\x40", "too early"),
        (encoded((b"x-mq-client-id", b"a\nforged")), "line break"),
    ],
)
def test_what_is_no_block_is_named(block: bytes, wrong: str) -> None:
    with pytest.raises(HeadersError, match=wrong):
        HeaderDecoder().decode(block)


def test_a_short_block_may_not_become_very_long() -> None:
    decoder = HeaderDecoder()
    decoder.decode(encoded((b"a", b"")) + b"\x40\x01b" + b"\x7f\xa1\x1e" + b"x" * 4000)
    with pytest.raises(HeadersError, match=str(FIELDS_BYTES_MAX)):
        decoder.decode(b"\xbe" * 20)


def test_the_table_keeps_no_more_than_is_agreed() -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    for number in range(1000):
        decoder.decode(encoder.encode([(f"name-{number}", "x" * (number % 200))]))
        assert decoder._bytes <= TABLE_BYTES
        assert sum(size for _, size in decoder._entries) == decoder._bytes
    decoder.decode(b"\x20")
    assert not decoder._entries


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 1000, 20_000])
def test_others_understand_what_it_writes(length: int) -> None:
    fields = [(b"grpc-message", b"x" * length), (b"n" * max(length, 1), b"")]
    found = Decoder(max_header_list_size=1 << 20).decode(encoded(*fields), raw=True)
    assert [tuple(each) for each in found] == fields


def test_what_answers_begin_and_end_with() -> None:
    decoder = Decoder()
    begin = dict(decoder.decode(BEGIN))
    assert begin == {":status": "200", "content-type": "application/grpc", "grpc-accept-encoding": "identity,gzip"}
    assert dict(decoder.decode(trailers(Status.OK, "not said"))) == {"grpc-status": "0"}
    end = dict(decoder.decode(trailers(Status.INTERNAL, "100 % broken: \n ü")))
    assert end == {"grpc-status": "13", "grpc-message": "100 %25 broken: %0A %C3%BC"}
