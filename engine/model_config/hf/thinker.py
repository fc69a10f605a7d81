"""Models that also generate speech: the config.json of the text model is a part of theirs."""

from collections.abc import Mapping


def thinker(config: Mapping[str, object]) -> Mapping[str, object]:
    """The thinker's config.json: the part of a speaking model that answers in text. ``config`` itself if it has
    none."""
    found = config.get("thinker_config")
    return {**found, "architectures": None} if isinstance(found, Mapping) else config
