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
        if not line or line.startswith("#") or (match := _SAMPLE.fullmatch(line)) is None:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if math.isfinite(value) and not match[1].partition("{")[0].endswith("_created"):
            found[match[1]] = value
    return found


def changes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What counters of the server rose by; histograms' buckets and what did not move are left out."""
    counted = {
        name: value - before.get(name, 0.0)
        for name, value in after.items()
        if (bare := name.partition("{")[0]).endswith(("_total", "_sum", "_count")) and not bare.startswith("python_")
    }
    return {name: change for name, change in counted.items() if change > 0}
