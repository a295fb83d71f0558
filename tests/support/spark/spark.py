"""How the tests start Spark: small, quiet, and compiling little, since no test runs long."""

from __future__ import annotations

_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Spark's ten thousand classes are known to be sound: a sixth of the work of a start was to look whether they are."""
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.sql.adaptive.enabled": "false",  # plans again after each stage, and tests have tiny ones
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
