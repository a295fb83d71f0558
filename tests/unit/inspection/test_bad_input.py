"""Whatever lies in the directory: an error by name, or problems with path and offset; nothing is written."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.inspection import list_store, summarize, verify
from tests.support.golden import damage
from tests.unit.inspection.trees import unpack, untouched

COMMANDS = (
    ["inspect", "{}"],
    ["verify", "{}"],
    ["query", "{}", "--topic", "Keys", "--key", "k4"],
    ["query", "{}", "--topic", "Keys", "--time", "1"],
    ["query", "{}", "--topic", "Keys", "--queue", "0", "--offset", "1"],
)


def run(root: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[int, str, str]]:
    """Every command over ``root``: exit code, output, errors. None may crash or write."""
    found = []
    with untouched(root):
        for command in COMMANDS:
            code = main(["store", *(word.format(root) for word in command), "--json"])
            out, err = capsys.readouterr()
            assert "Traceback" not in err
            assert "this is a defect" not in err, err
            assert code in (0, 1, 2)
            if out:
                json.loads(out)
            found.append((code, out, err))
    return found


def test_a_missing_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", str(tmp_path / "nothing")]) == 2
    assert f"error: {tmp_path / 'nothing'}: no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda root: None, "if its log lies elsewhere (storePathCommitLog), name that directory: --commitlog DIR"),
        (lambda root: (root / "commitlog").mkdir(), "holds no log file"),
        (lambda root: (root / "commitlog").write_text("a file"), "holds no store"),
        (lambda root: _log_file(root, b""), "the log files are empty"),
    ],
    ids=["empty", "empty log", "a file for the log", "empty log file"],
)
def test_what_is_no_store_is_refused(
    make: Callable[[Path], object], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    for code, out, err in run(tmp_path, capsys):
        assert (code, out) == (1, "")
        assert text in err


def _log_file(root: Path, data: bytes) -> None:
    (root / "commitlog").mkdir()
    (root / "commitlog" / f"{0:020d}").write_bytes(data)


@pytest.mark.parametrize("size", [1, 7, 8, 90, 4096])
def test_a_log_of_zeros_or_noise_is_looked_at_calmly(
    size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, data in enumerate((bytes(size), b"\xff" * size, random.Random(size).randbytes(size))):
        root = tmp_path / str(number)
        root.mkdir()
        _log_file(root, data)
        run(root, capsys)


STRANGE: dict[str, Callable[[Path], object]] = {
    "a pipe for a log file": lambda root: os.mkfifo(root / "commitlog" / f"{1 << 20:020d}"),
    "a directory for a log file": lambda root: (root / "commitlog" / f"{1 << 20:020d}").mkdir(),
    "a foreign log file": lambda root: (root / "commitlog" / "notes.txt").write_text("mine"),
    "a foreign queue file": lambda root: (root / "consumequeue" / "Keys" / "0" / "x").write_text("mine"),
    "a foreign queue": lambda root: (root / "consumequeue" / "Keys" / "first").mkdir(),
    "a foreign index file": lambda root: (root / "index" / "2026").write_text("mine"),
    "a dangling link": lambda root: (root / "index" / "20261121010236999").symlink_to(root / "nowhere"),
    "a circular link": lambda root: (root / "consumequeue" / "Loop").symlink_to(root / "consumequeue" / "Loop"),
    "an overlapping log file": lambda root: (root / "commitlog" / f"{100:020d}").write_bytes(bytes(16384)),
    "a long queue file": lambda root: (root / "consumequeue" / "Keys" / "0" / f"{0:020d}").write_bytes(b"1" * 401),
    "a directory for the checkpoint": lambda root: ((root / "checkpoint").unlink(), (root / "checkpoint").mkdir()),
    "an index of noise": lambda root: (root / "index" / "20261121010236880").write_bytes(b"\x7f" * 2640),
    "an index without slots": lambda root: (root / "index" / "20261121010236880").write_bytes(
        b"\x00" * 36 + b"\x7f" * 9
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_files_are_problems_with_a_path(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpack("direct", tmp_path)
    STRANGE[name](root)
    results = run(root, capsys)
    code, out, _ = results[1]
    assert code == 1
    problems = json.loads(out)["problems"]
    assert problems
    assert all(problem["path"].startswith(str(root)) for problem in problems)
    assert results[2][0] == 0, "a query must still be answered"


def test_linked_directories_are_followed(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path / "store")
    (root / "commitlog").rename(tmp_path / "elsewhere")
    (root / "commitlog").symlink_to(tmp_path / "elsewhere")
    with untouched(tmp_path):
        assert verify(list_store(root)).findings.ok


def test_a_log_with_holes_is_read_as_zeros(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path)
    path = root / "commitlog" / "00000000000000098304"
    data = path.read_bytes()
    os.truncate(path, 14595)  # the log's end in this file
    os.truncate(path, len(data))
    assert path.read_bytes() == data
    assert verify(list_store(root)).findings.ok


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_are_problems(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path)
    (root / "commitlog" / "00000000000000016384").chmod(0)
    problems = verify(list_store(root)).findings.problems
    assert any("Permission denied" in problem.problem for problem in problems)


def test_a_file_that_fails_while_it_is_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.inspection import files

    root = unpack("direct", tmp_path)
    bad = os.stat(root / "commitlog" / "00000000000000016384").st_ino
    real = os.preadv

    def failing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(files.os, "preadv", failing)
    problems = verify(list_store(root)).findings.problems
    assert any(p.path.endswith("00000000000000016384") and "Input/output error" in p.problem for p in problems)
    monkeypatch.undo()
    assert verify(list_store(root)).findings.ok


def test_random_damage_never_ends_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = random.Random(7)
    root = unpack("direct", tmp_path)
    paths = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    for _ in range(60):
        name = chosen.choice(paths)
        size = (root / name).stat().st_size
        if not size:
            continue
        kept = (root / name).read_bytes()
        at = chosen.randrange(size)
        damage(root, [{"file": name, "offset": at, "hex": chosen.randbytes(min(8, size - at)).hex()}])
        list_store(root)
        verify(list_store(root))
        summarize(list_store(root))
        (root / name).write_bytes(kept)
    capsys.readouterr()
    assert verify(list_store(root)).findings.ok
