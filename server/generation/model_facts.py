"""Description of a model for clients."""

import re
from dataclasses import dataclass
from typing import Final

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.model_config.model_spec import ModelSpec
from stentor.engine.model_config.pooling_config import PoolingConfig

_HEADS: Final = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
"""The end of an architecture's name, which names the task."""


@dataclass(frozen=True)
class ModelFacts:
    """Unknown values are empty, or 0."""

    architecture: str = ""
    format: str = ""
    """Format of its files: ``safetensors``, ``gguf``."""
    dtype: str = ""
    """The dtype of most weight bytes."""
    weight_bytes: int = 0
    parameters: int = 0
    hidden_size: int = 0

    @property
    def family(self) -> str:
        """The name in GGUF files: ``qwen3moe`` for ``Qwen3MoeForCausalLM``."""
        return _HEADS.sub("", self.architecture).lower()


def facts_of(checkpoint: Checkpoint) -> ModelFacts:
    """Facts of the main model."""
    spec = checkpoint.config
    if isinstance(spec, PoolingConfig):
        return facts_of_encoder(spec)
    parameters, hidden = (spec.parameters, spec.hidden_size) if isinstance(spec, ModelSpec) else (0, 0)
    size = checkpoint.total_bytes
    return ModelFacts(spec.architecture, str(checkpoint.format), checkpoint.dtype, size, parameters, hidden)


def facts_of_encoder(config: PoolingConfig) -> ModelFacts:
    return ModelFacts(config.architecture, hidden_size=config.dimensions)
