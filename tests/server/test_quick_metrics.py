"""The counter and the histogram of every token, beside prometheus_client's own."""

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from stentor.server.observability.quick_metrics import QuickCounter, QuickHistogram

LABELS = {"model_name": "a"}
BUCKETS = (0.5, 1, 2.5)


def page(registry: CollectorRegistry) -> list[str]:
    """The page without the times of creation, which the quick ones do not keep."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@settings(deadline=None)
@given(st.lists(st.sampled_from([*BUCKETS, 0.0]) | st.floats(0, 4), max_size=20))
def test_the_histogram_says_what_prometheus_own_would(values: list[float]) -> None:
    quick, own = CollectorRegistry(), CollectorRegistry()
    histogram = QuickHistogram("s:gap_seconds", "Gaps.", LABELS, quick, BUCKETS)
    reference = Histogram("s:gap_seconds", "Gaps.", ("model_name",), registry=own, buckets=BUCKETS).labels("a")
    for value in values:
        histogram.observe(value)
        reference.observe(value)
    assert page(quick) == page(own)


def test_the_counter_says_what_prometheus_own_would() -> None:
    quick, own = CollectorRegistry(), CollectorRegistry()
    counter = QuickCounter("s:tokens", "Tokens.", LABELS, quick)
    reference = Counter("s:tokens", "Tokens.", ("model_name",), registry=own).labels("a")
    assert page(quick) == page(own)
    counter.inc(3)
    reference.inc(3)
    assert page(quick) == page(own)
