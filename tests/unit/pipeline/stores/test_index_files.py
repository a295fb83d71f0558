"""Index files that the rebuild job writes, read back as a broker does, and against a plain reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from penstock.formats.hashing import string_hash  # noqa: E402
from penstock.inspection.index.files import IndexFile  # noqa: E402
from penstock.pipeline.jobs.rebuild.index_files import KEYS_PER_FILE, divide, file_names, write_index_files  # noqa: E402

SLOTS = 7
Message = tuple[str, int, int, list[str]]


def table(messages: list[Message], part: int = 0) -> pa.Table:
    physical, stored = ([message[at] for message in messages] for at in (1, 2))
    hashes = [[abs(string_hash(f"{topic}#{key}")) for key in keys] for topic, _, _, keys in messages]
    return pa.table(
        {
            "part": pa.array([part] * len(messages), pa.int32()),
            "physicalOffset": pa.array(physical, pa.int64()),
            "storeTimestamp": pa.array(stored, pa.int64()),
            "keyHashes": pa.array(hashes, pa.list_(pa.int32())),
        }
    )


def found(path: Path, topic: str, key: str) -> list[int]:
    """Log positions that the chain of the key's slot leads to, newest first."""
    value = abs(string_hash(f"{topic}#{key}"))
    index = IndexFile(path)
    try:
        index.infer_slots(SLOTS)
        number, positions = index.newest(value % SLOTS), []
        while number:
            key_hash, physical, _, number = index.entry(number)
            if key_hash == value:
                positions.append(physical)
        return positions
    finally:
        index.close()


texts = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["a", "Büro"]), st.lists(texts, min_size=1, max_size=3)), min_size=1))
def test_every_key_leads_to_its_messages(
    tmp_path_factory: pytest.TempPathFactory, given_messages: list[tuple[str, list[str]]]
) -> None:
    messages = [(topic, 100 + 10 * n, 5_000 + 400 * n, words) for n, (topic, words) in enumerate(given_messages)]
    root = tmp_path_factory.mktemp("store")
    names = [["20260101000000000"]]
    write_index_files(str(root), names, table(messages[::-1]), SLOTS, 200)
    path = root / "index" / names[0][0]
    assert path.stat().st_size == 40 + 4 * SLOTS + 20 * 200
    for topic, _, _, words in messages:
        for key in words:
            wanted = [at for other, at, _, keys in messages for one in keys if (other, one) == (topic, key)]
            assert found(path, topic, key) == wanted[::-1]


def test_more_keys_than_a_file_holds_fill_several(tmp_path: Path) -> None:
    messages: list[Message] = [("t", n, 1_000 * n, [f"k{n}"]) for n in range(1, 8)]
    names = file_names([3], 1_000)
    written = write_index_files(str(tmp_path), names, table(messages), SLOTS, 4)
    assert written.to_pylist() == [{"part": 0, "keys": 7, "first": 1, "last": 7}]
    paths = [tmp_path / "index" / name for name in names[0]]
    assert [[n for n in range(1, 8) if found(path, "t", f"k{n}")] for path in paths] == [[1, 2, 3], [4, 5, 6], [7]]
    header = IndexFile(paths[1])
    try:
        assert header.header[:4] == (4_000, 6_000, 4, 6)
    finally:
        header.close()


def test_neighbours_share_a_part_while_its_file_has_room() -> None:
    parts, files = divide([(2, 3), (0, 4), (1, 5), (7, 30), (9, 1)], 11)
    assert parts == {0: 0, 1: 0, 2: 1, 7: 2, 9: 3}
    assert files == [1, 1, 3, 1]
    assert divide([(0, KEYS_PER_FILE), (1, 1)], 20_000_000) == ({0: 0, 1: 1}, [1, 1])


def test_names_ascend_over_all_parts() -> None:
    names = [name for part in file_names([2, 1, 3], 1_700_000_000_998) for name in part]
    assert names == sorted(set(names))
    assert all(len(name) == 17 and name.isdigit() for name in names)
