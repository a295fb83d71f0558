"""The wheel holds what the repository holds, and everything in it can be imported."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from penstock.proto.distribution import DISTRIBUTION

ROOT = Path(__file__).parents[2]
COMPONENTS = (
    *("proto", "formats", "runtime", "nameserver", "replication", "client", "broker", "gateway", "inspection"),
    *("pages", "judge", "deploy", "bench", "pipeline", "drill", "cli", "demo"),
)
PACKAGED = {".py", ".pyi", ".proto", ".typed", ".html", ".css", ".jinja", ".java"}


def test_the_wheel_holds_exactly_the_tracked_code(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    listed = ["git", "ls-files", *COMPONENTS, "sources"]
    committed = subprocess.run(listed, cwd=source, capture_output=True, text=True, check=True).stdout.split()
    kept = [name for name in committed if Path(name).suffix in PACKAGED]
    assert packed == {
        name.removeprefix("sources/") if name.startswith("sources/") else f"penstock/{name}" for name in kept
    }


def test_the_distribution_is_called_what_the_code_and_the_documents_say() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]
    foreign = re.compile(r"pip install '?penstock(?!-mq)\b|\bpenstock\[")
    assert [str(page) for page in pages if page != Path(__file__) and foreign.search(page.read_text())] == []


def test_spark_finds_the_data_sources_by_itself() -> None:
    program = "import pkgutil; print(*sorted(each.name for each in pkgutil.iter_modules() if 'pyspark_' in each.name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == ["pyspark_penstock", "pyspark_penstock_store"]


def test_every_module_can_be_imported() -> None:
    found = []
    for component in COMPONENTS:
        package = importlib.import_module(f"penstock.{component}")
        found += [module.name for module in pkgutil.walk_packages(package.__path__, f"penstock.{component}.")]
    modules = [name for name in found if not name.endswith("__main__")]
    for name in modules:
        importlib.import_module(name)
    assert len(modules) > 50


def test_importing_the_client_does_not_load_the_compiler() -> None:
    program = "import sys, penstock.client; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_only_environments_for_spark_install_it() -> None:
    everywhere = (ROOT / "constraints.txt").read_text()
    assert "\npyspark==" not in everywhere, "write the constraints with make constraints, which keeps Spark apart"
    assert "\npyspark==" in (ROOT / "constraints-spark.txt").read_text()
