"""Reads transformers' modules from a projector file, and undoes the converters' changes."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

import torch

from .gguf.mmproj_modules import LIMITS, ModuleParts, template_of
from .gguf.mmproj_tensors import FIRST_FRAME, SECOND_FRAME

Read = Callable[[str], torch.Tensor]
"""Reads a tensor by its name in the file, in torch's order of dimensions."""
_SINUSOIDS: Final = "a.position_embd.weight"
_LEARNED: Final = ("ultravox", "voxtral", "qwen2_audio")
"""Model types with learned audio positions; other files contain sinusoids in their place."""
_BATCH_EPS: Final = 1e-5
"""Epsilon of batch norms, whose mean and variance converters fold into the weights."""
_JOINED: Final = {"a.blk.{}.attn_k.weight": "a.blk.{}.attn_v.weight"}
"""Granite Speech: the second tensor to append as rows, by the first."""


def _of_softplus(stored: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)) → x"""
    return stored.float() + torch.log(-torch.expm1(-stored.float()))


def _by_channels(patches: torch.Tensor) -> torch.Tensor:
    """[hidden, channels, rows, columns] → [hidden, rows · columns · channels]"""
    return patches.permute(0, 2, 3, 1).flatten(1)


def _identity(weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Statistics of a batch norm that is folded into its weight."""
    norm = "encoder.layers.{}.conv.batch_norm"
    return {
        f"{norm}.running_mean": torch.zeros_like(weight),
        f"{norm}.running_var": torch.full_like(weight, 1 - _BATCH_EPS),
        f"{norm}.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }


def _marks(bias: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Unused embeddings around a sound that files leave out."""
    return {"thinker.audio_tower.audio_bos_eos_token.weight": bias.new_zeros(2, len(bias))}


_DEPTHWISE: Final = {"a.blk.{}.conv_dw.weight": partial(torch.unsqueeze, dim=1)}
_CHANGED: Final[Mapping[str, Mapping[str, Callable[[torch.Tensor], torch.Tensor]]]] = {
    "granite_speech": {
        **_DEPTHWISE,
        **{f"a.blk.{{}}.conv_pw{each}.weight": partial(torch.unsqueeze, dim=-1) for each in (1, 2)},
    },
    "gemma4": {
        **_DEPTHWISE,
        **{"v.patch_embd.weight": _by_channels, "a.blk.{}.per_dim_scale.weight": _of_softplus},
    },
}
"""By model type and stored name."""
_BESIDES: Final[Mapping[str, Mapping[str, Callable[[torch.Tensor], Mapping[str, torch.Tensor]]]]] = {
    "granite_speech": {"a.blk.{}.conv_norm.weight": _identity},
    "qwen2_5_omni": {"mm.a.fc.bias": _marks},
}
"""Makes further tensors of a module from a stored one, by model type and stored name."""


def module_weights(parts: ModuleParts, names: Collection[str], read: Read) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) from the file's tensors with these names."""
    kind = parts.model_type
    joined = _JOINED if kind == "granite_speech" else {}
    passed_over = {SECOND_FRAME, *([] if kind in _LEARNED else [_SINUSOIDS])}
    for stored in names:
        form, numbers = template_of(stored)
        if stored in passed_over or form in joined.values():
            continue
        values, name = read(stored), parts.name(stored)
        if stored == FIRST_FRAME and SECOND_FRAME in names:
            values = torch.stack((values, read(SECOND_FRAME)), dim=2)  # [hidden, channels, frames, patch, patch]
        if form in joined:
            values = torch.cat((values, read(joined[form].format(*numbers))))
        if (change := _CHANGED.get(kind, {}).get(form)) is not None:
            values = change(values)
        if name.endswith(LIMITS):
            values = values.view(())
        yield name, values.flatten() if name.endswith(".bias") else values  # biases of convolutions are columns
        if (besides := _BESIDES.get(kind, {}).get(form)) is not None:
            yield from ((own.format(*numbers), each) for own, each in besides(values).items())
