"""Records a CPU program from a model's description, without weights."""

import torch

from ..layers.linear.layer_context import LayerContext
from ..model_config.spec.model import ModelSpec
from ..models.decoder import Decoder
from .caches import allocate_caches

_CPU = torch.device("cpu")
_BLOCK = 16


def calls_of(spec: ModelSpec) -> list[str]:
    """The operations that a pass calls outside its program, each kind once, in words; computes nothing."""
    model = Decoder(spec, LayerContext(_CPU, torch.float32, invariant=False, packed=True), max_model_len=_BLOCK)
    caches = allocate_caches(spec.cache_groups, 1, _BLOCK, _CPU, torch.float32)
    programs = model.programs(caches)
    assert programs is not None, "a CPU with packed weights runs programs"
    return [*dict.fromkeys(programs.calls)]
