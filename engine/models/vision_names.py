"""The names that towers' tensors have in checkpoints, as those that :class:`.vision_tower.VisionTower` has."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch

from ..model_config.vision_spec import VisionSpec
from .vision_projector import stored_as_multiplied

_TOWER: Final = re.compile(r"\A(?:model\.)?(?:vision_tower|vision_model|visual|vision_encoder)\.(?:vision_model\.)?")
_PROJECTOR: Final = re.compile(r"\A(?:model\.)?(?:connector|multi_modal_projector)\.")
_BARE: Final = ("weight", "bias")
"""How the names of tensors end that are no module's of their own."""
_RENAMED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "siglip": (),
    "qwen": (
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\Amerger\.", "projector."),
        (r"\Adeepstack_merger_list\.(\d+)\.", r"deepstack.\1.projector."),
    ),
}
"""Patterns and what stands for them, by :attr:`..model_config.vision_spec.VisionSpec.names`."""


def tower_tensors(spec: VisionSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a tower and its projector, matrices with two dimensions; without those that nothing is made of."""
    renamed = [(re.compile(pattern), put) for pattern, put in _RENAMED[spec.names]]
    layer = re.compile(re.escape(spec.prefix) + r"\.(\d+)\.")
    for stored, tensor in tensors:
        name = _PROJECTOR.sub("projector.", _TOWER.sub("", stored))
        for pattern, put in renamed:
            name = pattern.sub(put, name)
        found = layer.match(name)
        if name.startswith(spec.unused) or (found and int(found[1]) >= len(spec.layers)):
            continue
        if name.rpartition(".")[2] not in _BARE:
            name = f"{name}.weight"
        if tensor.dim() > 2:
            tensor = tensor.flatten(1)  # a convolution whose steps are as long as itself
        yield name, stored_as_multiplied(spec.projector, spec.hidden_size, spec.merge, name, tensor)
