"""Voxtral Realtime: a decoder that reads a piece of audio at each position and writes text with a fixed delay.

The input of a position is its token's embedding plus the embedding of its audio by :mod:`.stream_encoder`. The delay
enters each layer as a factor on one of its norms. It is the same for all requests, so it is multiplied into the norm's
weights at load, which leaves a Mistral.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ...layers.forward_batch import ForwardBatch
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...model_config.speech.voxtral_realtime import VoxtralRealtimeConfig
from ..decoder import Decoder
from .stream_encoder import StreamEncoder

_LANGUAGE = "language_model."
_FIRST, _SECOND = ".ada_rms_norm.linear1.weight", ".ada_rms_norm.linear2.weight"
_NORM = ".post_attention_layernorm.weight"
_THETA = 10_000.0


class VoxtralRealtime:
    """Tokens and their audio in, hidden states and logits out, as :class:`..decoder.Decoder`, with the embeddings of
    :class:`.stream_encoder.StreamEncoder` added."""

    def __init__(self, config: VoxtralRealtimeConfig, context: LayerContext, max_model_len: int) -> None:
        self.config = config
        self.decoder = Decoder(config.decoder, context, max_model_len)
        audio = WeightMap()
        self.encoder = StreamEncoder(audio, config, context)
        self.weights = _Weights(self.decoder.weights, audio)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the weights from a checkpoint's tensors. Raises :class:`...layers.linear.weights.WeightError`."""
        audio: list[tuple[str, torch.Tensor]] = []
        self.decoder.load(self._language(tensors, audio))
        self.weights.audio.load(audio)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden], as :meth:`..decoder.Decoder.forward`."""
        return self.decoder.forward(batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary]."""
        return self.decoder.logits(hidden)

    def _language(
        self, tensors: Iterable[tuple[str, torch.Tensor]], audio: list[tuple[str, torch.Tensor]]
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
                yield layer + _NORM, self._delayed(parts)
        yield from ((f"{layer}{_NORM}", parts[_NORM]) for layer, parts in waiting.items() if _NORM in parts)

    def _delayed(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """The norm's weights times one plus the factor of the delay."""
        first, second, norm = (parts[name].float() for name in (_FIRST, _SECOND, _NORM))
        half = self.config.decoder.hidden_size // 2
        steps = torch.arange(half, device=norm.device).float()
        angles = self.config.delay * torch.exp(-math.log(_THETA) * steps / half)
        delay = torch.cat((angles.cos(), angles.sin()))
        return norm * (1 + second @ torch.nn.functional.gelu(first @ delay))


@dataclass(frozen=True)
class _Weights:
    """The weight maps of both parts."""

    language: WeightMap
    audio: WeightMap

    @property
    def raw(self) -> frozenset[str]:
        return self.language.raw | self.audio.raw

    @property
    def total_bytes(self) -> int:
        return self.language.total_bytes + self.audio.total_bytes

    def note_lines(self) -> Iterator[str]:
        yield from self.language.note_lines()
        yield from self.audio.note_lines()
