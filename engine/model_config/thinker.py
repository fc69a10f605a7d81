"""Models that also speak: what reads and writes text stands in a part of their config.json, which is a whole one."""

from collections.abc import Mapping


def thinker(config: Mapping[str, object]) -> Mapping[str, object]:
    """That part; or ``config`` itself, of a model that does not speak."""
    found = config.get("thinker_config")
    return {**found, "architectures": None} if isinstance(found, Mapping) else config
