"""The tensors of Voxtral Realtime's decoder, as a Mistral's.

The delay enters each layer as a factor on one of its norms. It is the same for all requests, so it is multiplied into
the norm's weights at load, which leaves a Mistral.
"""

import math
from collections.abc import Iterable, Iterator

import torch

from ...model_config.speech.voxtral_realtime import VoxtralRealtimeConfig

_LANGUAGE = "language_model."
_FIRST, _SECOND = ".ada_rms_norm.linear1.weight", ".ada_rms_norm.linear2.weight"
_NORM = ".post_attention_layernorm.weight"
_THETA = 10_000.0


def voxtral_tensors(
    config: VoxtralRealtimeConfig,
    tensors: Iterable[tuple[str, torch.Tensor]],
    audio: list[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """The decoder's tensors under a Mistral's names; those of the encoder are added to ``audio``."""
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors:
        if not name.startswith(_LANGUAGE):
            audio.append((name, tensor))
            continue
        name = name.removeprefix(_LANGUAGE)
        ending = next((each for each in (_FIRST, _SECOND, _NORM) if name.endswith(each)), None)
        if ending is None:
            yield name, tensor
            continue
        layer = name.removesuffix(ending)
        parts = waiting.setdefault(layer, {})
        parts[ending] = tensor
        if len(parts) == 3:
            del waiting[layer]
            yield layer + _NORM, _delayed(config, parts)
    yield from ((f"{layer}{_NORM}", parts[_NORM]) for layer, parts in waiting.items() if _NORM in parts)


def _delayed(config: VoxtralRealtimeConfig, parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """The norm's weights times one plus the factor of the delay."""
    first, second, norm = (parts[name].float() for name in (_FIRST, _SECOND, _NORM))
    half = config.decoder.hidden_size // 2
    steps = torch.arange(half, device=norm.device).float()
    angles = config.delay * torch.exp(-math.log(_THETA) * steps / half)
    delay = torch.cat((angles.cos(), angles.sin()))
    return norm * (1 + second @ torch.nn.functional.gelu(first @ delay))
