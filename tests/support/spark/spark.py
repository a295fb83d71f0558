"""How the tests start Spark: small, quiet, and compiling little, since no test runs long."""

from __future__ import annotations

from pathlib import Path

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",  # plans again after each stage, and tests have tiny ones
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def home_without_archives(directory: Path) -> str:
    """A ``SPARK_HOME`` like the installed one, without ``python/lib/pyspark.zip``.

    Spark puts that before everything else on the path of each Python process that it starts. Python keeps no bytecode
    of what lies in an archive: without it a process starts in a third of the time.
    """
    import pyspark

    for part in ("bin", "jars"):
        (directory / part).symlink_to(Path(pyspark.__file__).parent / part)
    return str(directory)
