"""Voxtral Realtime: a decoder that hears a little more at each position, and writes what was said some positions ago.

The input of a position is its token's embedding and what :mod:`.stream_encoder` makes of the audio of that position. By
how much text comes late is told to each layer as a factor of one of its norms. It is the same for all requests, so it
is multiplied into the norm's weights when they are loaded, and what is left is a Mistral.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from stentor import kernels

from ..layers.attention import LayerCache
from ..layers.layer_context import LayerContext
from ..layers.weights import WeightMap
from ..model_config.voxtral_realtime_config import VoxtralRealtimeConfig
from .decoder import Decoder
from .stream_encoder import StreamEncoder

_LANGUAGE = "language_model."
_FIRST, _SECOND = ".ada_rms_norm.linear1.weight", ".ada_rms_norm.linear2.weight"
_NORM = ".post_attention_layernorm.weight"
_THETA = 10_000.0


class VoxtralRealtime:
    """Tokens and what is heard with them in, hidden states and logits out; see :class:`.decoder.Decoder`."""

    def __init__(self, config: VoxtralRealtimeConfig, context: LayerContext, max_model_len: int) -> None:
        self.config = config
        self.decoder = Decoder(config.decoder, context, max_model_len)
        audio = WeightMap()
        self.encoder = StreamEncoder(audio, config, context)
        self.weights = _Weights(self.decoder, audio, config)

    @property
    def ignored_weights(self) -> tuple[str, ...]:
        """Endings of stored names that carry nothing."""
        return self.decoder.ignored_weights

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[LayerCache],
        batch: kernels.AttentionBatch,
        heard: torch.Tensor,
    ) -> torch.Tensor:
        """``heard`` [tokens, hidden] is what each position hears, by :meth:`.stream_encoder.StreamEncoder.listen`."""
        return self.decoder.forward(tokens, positions, caches, batch, heard)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary]."""
        return self.decoder.logits(hidden)


class _Weights:
    """Those of both parts."""

    def __init__(self, decoder: Decoder, audio: WeightMap, config: VoxtralRealtimeConfig) -> None:
        self._decoder, self._audio, self._config = decoder, audio, config

    @property
    def raw(self) -> frozenset[str]:
        return self._decoder.weights.raw | self._audio.raw

    @property
    def total_bytes(self) -> int:
        return self._decoder.weights.total_bytes + self._audio.total_bytes

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], *, ignore: tuple[str, ...] = ()) -> None:
        """See :meth:`.WeightMap.load`."""
        audio: list[tuple[str, torch.Tensor]] = []
        self._decoder.weights.load(self._language(tensors, audio), ignore=ignore)
        self._audio.load(audio)

    def note_lines(self) -> Iterator[str]:
        yield from self._decoder.weights.note_lines()
        yield from self._audio.note_lines()

    def _language(
        self, tensors: Iterable[tuple[str, torch.Tensor]], audio: list[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The decoder's, under the names that a Mistral has; those of the encoder go to ``audio``."""
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
        """The norm's weights times one plus what the delay makes of it."""
        first, second, norm = (parts[name].float() for name in (_FIRST, _SECOND, _NORM))
        half = self._config.decoder.hidden_size // 2
        steps = torch.arange(half, device=norm.device).float()
        angles = self._config.delay * torch.exp(-math.log(_THETA) * steps / half)
        delay = torch.cat((angles.cos(), angles.sin()))
        return norm * (1 + second @ torch.nn.functional.gelu(first @ delay))
