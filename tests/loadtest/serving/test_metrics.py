"""The text that Prometheus reads."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from stentor.loadtest.serving.measure import parse_metrics, rise
from stentor.tests.support.metrics import metric_in


def test_what_the_client_library_writes_is_read() -> None:
    registry = CollectorRegistry()
    counter = Counter("hits", 'says "hits"', ["model_name"], registry=registry)
    counter.labels('a "b" {c}').inc(3)
    Gauge("load", "now", registry=registry).set(0.5)
    Gauge("gone", "never", registry=registry).set(float("nan"))
    Histogram("seconds", "each", buckets=(0.1,), registry=registry).observe(0.05)
    found = parse_metrics(generate_latest(registry).decode())
    assert found['hits_total{model_name="a \\"b\\" {c}"}'] == 3
    assert found["load"] == 0.5
    assert found['seconds_bucket{le="+Inf"}'] == 1
    assert not any(name.startswith("gone") or "_created" in name for name in found)


def test_a_time_stamp_is_passed_over_and_nonsense_left_out() -> None:
    assert parse_metrics("up 1 1395066363000\nwhat is this\n\n# HELP up 2\n<html>\nx y") == {"up": 1.0}


def test_a_counter_rises_by_what_its_samples_rose_whatever_stands_before_its_name() -> None:
    before = {'vllm:hits_total{model="a"}': 1.0, "hits_total_b": 5.0, "load": 1.0}
    after = {'vllm:hits_total{model="a"}': 4.0, 'vllm:hits_total{model="b"}': 2.0, "hits_total_b": 9.0}
    assert rise(before, after, "hits_total") == 5.0
    assert rise(before, after, "misses_total") == 0.0


def test_a_metric_is_summed_over_its_labels_and_one_that_is_not_there_is_no_0() -> None:
    page = '# HELP stentor:hits_total Hits.\nstentor:hits_total{model="a"} 3.0\nstentor:hits_total{model="b"} 2.0\n'
    assert metric_in(page, "hits_total") == 5.0
    with pytest.raises(AssertionError, match="no metric is called misses_total"):
        metric_in(page, "misses_total")
