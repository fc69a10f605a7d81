"""A server's ``/metrics`` in Prometheus' text format, as numbers by name.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

import math
import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*(?:\{.*\})?)\s+(\S+)(?:\s+-?\d+)?\s*")


def parse_metrics(text: str) -> dict[str, float]:
    """Samples by ``name{labels}`` as written. What is not a finite number, or no sample, is left out, and so are the
    times at which counters were made (``_created``)."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or (match := _SAMPLE.fullmatch(line)) is None:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if math.isfinite(value) and not match[1].partition("{")[0].endswith("_created"):
            found[match[1]] = value
    return found


def rise(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """What a counter rose by in all, whatever its labels are and whatever stands before ``:`` in its name."""
    return sum(
        value - before.get(sample, 0.0)
        for sample, value in after.items()
        if sample.partition("{")[0].rpartition(":")[2] == name
    )
