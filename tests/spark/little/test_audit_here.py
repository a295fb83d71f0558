"""Audits beside stores in a short session, whose work the driver does."""

from __future__ import annotations

from tests.spark.test_jobs_audit import sent as sent
from tests.spark.test_jobs_audit import store as store
from tests.spark.test_jobs_audit import test_stores_stand_for_reads_that_a_history_has_not

__all__ = ["sent", "store", "test_stores_stand_for_reads_that_a_history_has_not"]
