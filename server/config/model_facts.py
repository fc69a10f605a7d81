"""Description of a model for clients."""

import re
from typing import Final

import msgspec

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.model_config.encoders.pooling import PoolingConfig
from stentor.engine.model_config.spec.model import ModelSpec

_HEADS: Final = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
"""The end of an architecture's name, which names the task."""
_NUMBER_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""By stored type. Integers of unquantised models are positions, which old versions of transformers store."""


class ModelFacts(msgspec.Struct, frozen=True):
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
    """Facts of a chat, embedding or transcription model."""
    spec = checkpoint.config
    if isinstance(spec, ModelSpec):
        parameters, hidden = spec.parameters, spec.hidden_size
    elif isinstance(spec, PoolingConfig):
        parameters, hidden = _stored_numbers(checkpoint), spec.dimensions
    else:
        parameters, hidden = 0, 0
    size = checkpoint.total_bytes
    return ModelFacts(spec.architecture, str(checkpoint.format), checkpoint.dtype, size, parameters, hidden)


def _stored_numbers(checkpoint: Checkpoint) -> int:
    """Numbers in the files of an unquantised model; 0 for others."""
    if checkpoint.quantized is not None:
        return 0
    stored = checkpoint.stored_bytes
    return sum(stored.get(dtype, 0) // number_bytes for dtype, number_bytes in _NUMBER_BYTES.items())
