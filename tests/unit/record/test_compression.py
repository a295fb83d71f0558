"""Compressed bodies: the forms, bombs, and broken ones."""

from __future__ import annotations

import contextlib
import gzip
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.record.compression import decompress
from penstock.formats.record.layout import SysFlag
from penstock.proto.errors import Corrupt, MessageTooLarge

C = SysFlag.COMPRESSED


def zstd_stream(data: bytes) -> bytes:
    """As a stream writer makes it: the frame's header does not know the size."""
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(data) + writer.flush()


FORMS = [
    (C, zlib.compress),
    (C, gzip.compress),
    (C | SysFlag.COMPRESSION_ZLIB, zlib.compress),
    (C | SysFlag.COMPRESSION_LZ4, lz4.frame.compress),
    (C | SysFlag.COMPRESSION_ZSTD, zstandard.ZstdCompressor().compress),
    (C | SysFlag.COMPRESSION_ZSTD, zstd_stream),
]
forms = pytest.mark.parametrize(("sys_flag", "compress"), FORMS)


@forms
@pytest.mark.parametrize("body", [b"", b"x", b"hello" * 1000, bytes(range(256)) * 4096])
def test_bodies_of_every_form_are_read(sys_flag: int, compress: object, body: bytes) -> None:
    assert decompress(compress(body), sys_flag, len(body)) == body  # type: ignore[operator]


@forms
def test_a_body_that_expands_beyond_the_limit_is_refused(sys_flag: int, compress: object) -> None:
    compressed = compress(bytes(20_000_000))  # type: ignore[operator]
    with pytest.raises(MessageTooLarge, match="expands"):
        decompress(compressed, sys_flag, 19_999_999)
    assert len(decompress(compressed, sys_flag, 20_000_000)) == 20_000_000


@forms
def test_a_body_that_was_cut_is_corrupt(sys_flag: int, compress: object) -> None:
    compressed = compress(bytes(range(256)) * 40)  # type: ignore[operator]
    for end in (0, 1, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(Corrupt):
            decompress(compressed[:end], sys_flag)


@given(st.binary(max_size=300), st.sampled_from([sys_flag for sys_flag, _ in FORMS]))
def test_any_bytes_are_a_body_or_corrupt(data: bytes, sys_flag: int) -> None:
    with contextlib.suppress(Corrupt, MessageTooLarge):
        assert len(decompress(data, sys_flag, 1 << 20)) <= 1 << 20


def test_unknown_forms_are_corrupt_and_plain_bodies_are_left_alone() -> None:
    with pytest.raises(Corrupt, match="compression type 5"):
        decompress(b"x", C | 5 << 8)
    assert decompress(b"x", SysFlag.COMPRESSION_ZSTD) == b"x"
