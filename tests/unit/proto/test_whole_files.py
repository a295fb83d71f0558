"""Files that are replaced whole, when a call on the way fails."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.proto.errors import ConfigError
from penstock.runtime.whole_files import replace_file, require_writable, write_report


def test_a_file_is_made_with_its_directory_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    for content in (b"old", b"new"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_call_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    kept = tmp_path / "file.bak"

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="Input/output error"):
            replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    replace_file(path, b"new", keep_as=kept)
    assert (path.read_bytes(), kept.read_bytes()) == (b"new", b"old")


def test_content_is_synced_before_the_name_and_the_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    seen = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append((is_directory, path.read_bytes()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    replace_file(path, b"new")
    assert seen == [(False, b"old"), (True, b"new")]


def test_a_report_is_written_where_a_link_leads_which_stays(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    require_writable(link)
    write_report(link, "new")
    assert (link.is_symlink(), file.read_text()) == (True, "new")


def test_a_report_may_go_into_a_device_in_a_directory_that_is_not_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    null = Path(os.devnull)
    monkeypatch.setattr(os, "access", lambda path, mode: path == null)
    require_writable(null)
    write_report(null, "new")
    assert null.is_char_device()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=f"report {null}: is not writable"):
        require_writable(null)
