"""Kernels are compiled before they are needed, loaded quickly afterwards, and never from older sources."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.formats.intrinsics import freshness
from penstock.formats.intrinsics.warmup import compile_kernels
from penstock.formats.record import kernels
from penstock.proto.errors import ConfigError


def test_progress_counts_every_step_and_the_end() -> None:
    heard: list[tuple[str, int, int]] = []
    compile_kernels(lambda *step: heard.append(step), [("store", "penstock.broker.store")])
    total = heard[0][2]
    assert [step[1:] for step in heard] == [(number, total) for number in range(total + 1)]
    assert [step[0] for step in heard][-2:] == ["store", ""]


def test_every_kernel_has_exactly_its_declared_signature() -> None:
    dispatchers = [getattr(kernels, name) for name in kernels.__all__ if hasattr(getattr(kernels, name), "signatures")]
    assert len(dispatchers) >= 8
    for dispatcher in dispatchers:
        assert len(dispatcher.signatures) == 1
        assert dispatcher._can_compile is False, f"{dispatcher} would compile inside a call"


def test_importing_the_contract_of_records_does_not_load_numba() -> None:
    modules = "layout, properties, unique_key, producer_mark, form, reading, compression, rows"
    imports = f"import sys\nfrom penstock.formats import hashing\nfrom penstock.formats.record import {modules}"
    code = f"{imports}\nassert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package directory with a file of kernels, and a cache directory of its own for everything."""
    from numba import config

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "package" / "doubled.py"
    source.parent.mkdir()
    source.write_text("from numba import njit\n")
    return source


def test_cached_kernels_are_kept_while_no_source_changes_and_dropped_when_one_does(package: Path) -> None:
    freshness.drop_stale_kernels(str(package))
    cache = freshness._cache_directory(str(package))
    assert cache is not None
    index, data, other = cache / "doubled.nbi", cache / "doubled.1.nbc", cache / "other.txt"
    for path in (index, data, other):
        path.write_text("x")
    freshness.drop_stale_kernels(str(package))
    assert index.exists()
    package.write_text("from numba import njit  # repaired\n")
    freshness._digest.cache_clear()  # as in the process that starts after the upgrade
    freshness.drop_stale_kernels(str(package))
    assert not index.exists()
    assert not data.exists()
    assert other.exists()


def test_a_stamp_that_is_not_ours_counts_as_stale(package: Path) -> None:
    freshness.drop_stale_kernels(str(package))
    cache = freshness._cache_directory(str(package))
    assert cache is not None
    (cache / "penstock-kernels.stamp").write_bytes(b"\xff\xfe")
    index = cache / "doubled.nbi"
    index.write_text("x")
    freshness.drop_stale_kernels(str(package))
    assert not index.exists()
    assert [path.name for path in cache.iterdir()] == ["penstock-kernels.stamp"]
    assert os.access(cache / "penstock-kernels.stamp", os.R_OK)


def test_a_machine_without_a_writable_cache_is_told_what_to_set(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> object:
        raise RuntimeError("cannot cache function 'probe': no locator available")

    monkeypatch.setattr(freshness, "njit", refuse)
    with pytest.raises(ConfigError, match="NUMBA_CACHE_DIR"):
        freshness.drop_stale_kernels(str(package))


def test_kernels_contain_nothing_of_a_source_whose_change_would_go_unnoticed() -> None:
    """Constants are frozen into kernels: their modules are among the sources that the cache is stamped with."""
    root = Path(freshness.__file__).parents[2]
    seen = 0
    for component in ("formats", "broker", "gateway", "inspection", "pipeline"):
        stamped = freshness.sources(root / component)
        for path, source in stamped.items():
            if b"@kernel(" not in source or path.parent.name == "intrinsics":
                continue
            for module in _imported(path, root, source.decode()):
                is_contract = "wire" in module.parts or root / "proto" in module.parents  # their numbers never change
                assert is_contract or module in stamped, f"{path} holds what is in {module}: say so there"
                seen += 1
    assert seen > 100


def test_a_broker_has_all_its_kernels_before_it_serves() -> None:
    """One that is compiled when it is first called holds up the event loop for seconds, on a machine's first day."""
    root = Path(freshness.__file__).parents[2]
    modules = [
        ".".join(("penstock", *path.relative_to(root).with_suffix("").parts))
        for folder in ("broker", "formats/record/reposting")
        for path in sorted((root / folder).rglob("*.py"))
        if "@kernel(" in path.read_text()
    ]
    assert len(modules) > 8
    code = (
        "import sys\nfrom penstock.broker.process import load_kernels\nload_kernels()\n"
        f"print(set({modules}) - sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_no_kernel_takes_the_address_of_an_array_that_it_has_made() -> None:
    """Numba frees it as soon as nothing but its address is used: others would have that memory meanwhile."""
    root = Path(freshness.__file__).parents[2]
    kernels = 0
    for path in sorted(root.rglob("*.py")):
        source = path.read_text()
        if "@kernel(" not in source:
            continue
        for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
            kernels += 1
            taken = {
                call.args[0].id
                for call in ast.walk(function)
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == "address_of"
                and isinstance(call.args[0], ast.Name)
            }
            made = {
                name.id
                for assigned in ast.walk(function)
                if isinstance(assigned, ast.Assign) and _makes_an_array(assigned.value)
                for name in ast.walk(assigned.targets[0])
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
            assert not taken & made, f"{path}: {function.name} takes the address of {taken & made}"
    assert kernels > 100


def _makes_an_array(value: ast.expr) -> bool:
    calls = (node.func for node in ast.walk(value) if isinstance(node, ast.Call))
    return any(
        isinstance(each, ast.Attribute) and each.attr in ("empty", "zeros", "ones", "full", "copy") for each in calls
    )


def _imported(path: Path, root: Path, source: str) -> Iterator[Path]:
    """The files of the product's modules that a source imports from."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom):
            continue
        name = node.module or ""
        if not node.level and not name.startswith("penstock."):
            continue
        base = path.parents[node.level - 1] if node.level else root
        module = base.joinpath(*(name if node.level else name.removeprefix("penstock.")).split("."))
        for each in (*(module / alias.name for alias in node.names), module):
            for found in (each.with_suffix(".py"), each / "__init__.py"):
                if found.is_file():
                    yield found
