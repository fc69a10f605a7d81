"""A server's ``/metrics`` in Prometheus' text format, as numbers by name.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

import re
from collections.abc import Mapping

_NUMBER = r"[+-]?\d+\.?\d*(?:[eE][+-]?\d+)?"
_SAMPLE = re.compile(rf"^([a-zA-Z_:][\w:]*(?:\{{.*\}})?)[ \t]+({_NUMBER})(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)


def parse_metrics(text: str) -> dict[str, float]:
    """Samples by ``name{labels}`` as written. What is not a finite number, or no sample, is left out, and so are the
    times at which counters were made (``_created``)."""
    samples = _SAMPLE.findall(text)
    return {name: float(value) for name, value in samples if not name.partition("{")[0].endswith("_created")}


def rise(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """What a counter rose by in all, whatever its labels are and whatever stands before ``:`` in its name."""
    return sum(
        value - before.get(sample, 0.0)
        for sample, value in after.items()
        if sample.partition("{")[0].rpartition(":")[2] == name
    )
