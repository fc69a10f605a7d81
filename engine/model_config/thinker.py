"""Models that also generate speech: the config.json of the text model is a part of theirs."""

from collections.abc import Mapping


def thinker(config: Mapping[str, object]) -> Mapping[str, object]:
    """That part; or ``config`` itself for a model without speech."""
    found = config.get("thinker_config")
    return {**found, "architectures": None} if isinstance(found, Mapping) else config
