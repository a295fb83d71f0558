"""Errors of our sources as Spark passes them on, without Spark's JVM."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.errors.exceptions import connect
from pyspark.sql.streaming.query import StreamingQuery

from penstock.pipeline.spark.own_errors import _recovering, _telling, install, own_error
from penstock.proto.errors import ChangedBatch, ConfigError, PenstockError

TOLD = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source reader: Traceback (most recent call last):
  File "worker.py", line 7, in main
penstock.proto.errors.ConfigError: penstock: no option 'typo'
 SQLSTATE: 38000
"""


def recovered(error: Exception) -> Any:
    return _recovering(lambda each: each)(error)


def test_an_error_is_of_sparks_class_and_ours_and_is_told_in_a_line() -> None:
    for made in (PySparkException(TOLD), connect.AnalysisException(message=TOLD)):
        error = recovered(made)
        assert isinstance(error, type(made).__mro__[1])
        assert isinstance(error, ConfigError)
        said = "Failed to initialize Python data source reader: ConfigError: penstock: no option 'typo'"
        assert str(error) == f"[PYTHON_DATA_SOURCE_ERROR] {said}"
        assert error.message == "penstock: no option 'typo'"
        plain = own_error(error)
        assert type(plain) is ConfigError
        assert str(plain) == error.message


def test_the_last_of_several_errors_counts_and_others_stay_what_they_are() -> None:
    chain = f"Job aborted: {TOLD}\nCaused by: penstock.proto.errors.ChangedBatch: batch 3 is another"
    assert isinstance(recovered(PySparkException(chain)), ChangedBatch)
    foreign = PySparkException("Traceback (most recent call last):\nZeroDivisionError: division by zero")
    assert recovered(foreign) is foreign
    assert not isinstance(foreign, PenstockError)
    assert own_error(foreign) is None


def test_pyspark_is_told_once() -> None:
    install()
    hook, exception = vars(connect)["recover_python_exception"], StreamingQuery.exception
    install()
    assert vars(connect)["recover_python_exception"] is hook
    assert StreamingQuery.exception is exception


def test_a_query_tells_what_ended_it_in_a_line_too() -> None:
    exception = _telling(lambda query: query)
    assert exception(None) is None
    told = exception(PySparkException(TOLD))
    assert isinstance(told, ConfigError)
    assert "\n" not in str(told)
