"""Files that are allocated and not written."""

from __future__ import annotations

import os
from pathlib import Path

from pyarrow import fs

from penstock.pipeline.stores.files import FileReader, written


def test_what_was_only_allocated_is_zeros_that_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "0"
    with path.open("wb") as file:
        file.write(b"x" * 10_000)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        file.flush()
        assert 10_000 <= written(str(path)).bytes <= 64 << 10
        with FileReader(fs.LocalFileSystem(), str(path)) as reader:
            assert reader.read(9_999, 3).tolist() == [120, 0, 0]
            assert reader.read(1 << 19, 100).tolist() == [0] * 100
            assert len(reader.read((1 << 20) - 10, 100)) == 10
            assert len(reader.read(1 << 20, 100)) == 0


def test_a_file_that_is_whole_or_empty_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b"x" * 70_000)
    assert written(str(path)) == (70_000, 70_000)
    path.write_bytes(b"")
    assert written(str(path)) == (0, 0)
    with FileReader(fs.LocalFileSystem(), str(path)) as reader:
        assert len(reader.read(0, 10)) == 0
