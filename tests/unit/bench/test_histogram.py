"""Latency histograms against sorted lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.load.histogram import BUCKETS, Histogram, merged

latencies = st.lists(st.floats(0.0005, 500_000), min_size=1, max_size=200)


@settings(max_examples=50, deadline=None)
@given(latencies, st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_quantile_is_at_most_two_percent_above_the_exact_one(values: list[float], share: float) -> None:
    histogram = Histogram()
    histogram.add_all(np.array(values))
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    found = histogram.quantile(share)
    assert found is not None
    assert found == pytest.approx(max(exact, 0.001), rel=0.0201) or found <= max(values)
    assert found >= min(exact, max(values)) * 0.9999


@settings(max_examples=30, deadline=None)
@given(latencies)
def test_single_and_array_counting_agree(values: list[float]) -> None:
    one, many = Histogram(), Histogram()
    for value in values:
        one.add(value)
    many.add_all(np.array(values))
    assert one.summary() == pytest.approx(many.summary(), rel=0.0201)


def test_merging_and_the_way_through_json_keep_everything() -> None:
    first, second = Histogram(), Histogram()
    first.add(0.5, 10)
    second.add_all(np.array([2.0, 3_000_000.0]))
    total = merged([Histogram.from_document(first.to_document()), second])
    assert total.count == 12
    assert total.max_ms == 3_000_000.0
    assert total.counts[BUCKETS - 1] == 1


def test_nothing_counted_has_no_quantiles() -> None:
    assert Histogram().summary() == {"p50": None, "p99": None, "p999": None, "max": None}
    assert Histogram().coarse() == []


def test_coarse_buckets_hold_every_latency() -> None:
    histogram = Histogram()
    histogram.add_all(np.array([0.4, 0.45, 3.0, 100.0]))
    coarse = histogram.coarse()
    assert sum(count for _, count in coarse) == 4
    assert coarse[0] == (0.5, 2)
    assert coarse[-1][0] == 128.0
