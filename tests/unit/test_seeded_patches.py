"""The defects of tests/seeded still fit the code: a patch that does not apply finds nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.seeded.run import FOUND_BY, PATCHES, TREE


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git to try the patches")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_seeded_defect_applies_and_names_its_tests(patch: Path) -> None:
    tried = subprocess.run(["git", "apply", "--check", patch], cwd=TREE, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert all((TREE / name.partition("::")[0]).exists() for name in FOUND_BY[patch.name[:2]])
