"""What a CPU's pass over a model of a description would be, without its weights."""

import torch

from ..layers.layer_context import LayerContext
from ..model_config.model_spec import ModelSpec
from ..models.decoder import Decoder
from .caches import allocate_caches

_CPU = torch.device("cpu")
_BLOCK = 16


def calls_of(spec: ModelSpec) -> list[str]:
    """What the pass calls between stretches of its program, each kind once, in words; nothing is computed."""
    model = Decoder(spec, LayerContext(_CPU, torch.float32, invariant=False, packed=True), max_model_len=_BLOCK)
    caches = allocate_caches(spec.cache_groups, 1, _BLOCK, _CPU, torch.float32)
    return [*dict.fromkeys(model.body(caches).program.calls)]
