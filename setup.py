"""Map the folders at the root into the ``penstock`` namespace; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

COMPONENTS = (
    *("proto", "formats", "runtime", "nameserver", "replication", "client", "broker", "gateway", "inspection"),
    *("pages", "judge", "deploy", "bench", "pipeline", "drill", "cli", "demo"),
)


packages = []
for component in COMPONENTS:
    packages.append(f"penstock.{component}")
    packages += [f"penstock.{component}.{child}" for child in find_packages(component)]

# Spark finds data sources in top-level modules of these names by itself, where a directory of its path has them:
# scripts/setup adds theirs for a tree that is installed as it is.
DATA_SOURCES = ["pyspark_penstock", "pyspark_penstock_store"]

setup(
    py_modules=DATA_SOURCES,
    packages=packages,
    package_dir={"": "sources"} | {f"penstock.{component}": component for component in COMPONENTS},
)
