"""Processors of models that take sounds, by the name of transformers' processor. Run in the child."""

from collections.abc import Mapping
from typing import Any, Final

from .waveforms import OmniASRProcessor

SOUND_PROCESSORS: Final[Mapping[str, Any]] = {
    "OmniASRProcessor": OmniASRProcessor,
}
