"""Encoders of sounds on our own layers: Whisper's (arXiv:2212.04356), and what projects its output (Ultravox)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import torch

from ..layers.forward_batch import ForwardBatch
from ..layers.layer import Layer
from ..layers.layer_context import LayerContext
from ..layers.linear import Linear
from ..layers.norm import joined
from ..layers.quantized import Stream
from ..layers.rotary import RotaryTables
from ..model_config.audio_hf import audio_spec_from_hf
from ..model_config.audio_spec import AudioSpec
from ..model_config.config_fields import ConfigError
from .payload import Encoded, Payload
from .tower import Tower, sequences
from .vision_projector import Projector, stored_as_multiplied

_ENCODER: Final = re.compile(r"\A(?:audio_tower\.)?(?:model\.encoder\.)?")
_UNUSED: Final = re.compile(r"\A(?:audio_tower\.)?(?:model\.decoder|proj_out)\.")
"""Of a whole Whisper model."""
_SEEN_BEHIND: Final = 2
"""Frames that a position sees behind its own."""


class AudioTower(Tower):
    """Takes what a model's processor makes of a sound: ``audio_values`` [windows, mel bins, frames], of which the first
    ``audio_lens`` [windows] are sound."""

    def __init__(self, spec: AudioSpec, context: LayerContext) -> None:
        super().__init__(spec, context)
        self.spec = spec
        weights, context, hidden = self.weights, self._context, spec.hidden_size
        plain = replace(context, quantized=None)
        self._convolutions = [
            Linear(weights, {name: hidden}, 3 * inputs, plain, bias=True, activation="gelu", dtype=context.stream)
            for name, inputs in (("conv1", spec.mel_bins), ("conv2", hidden))
        ]
        self._positions = self._table("embed_positions", spec.max_position)
        rotary = RotaryTables(1, 1, context)
        self._layers = [Layer(weights, layer, spec, rotary, context) for layer in range(len(spec.layers))]
        self._final_norm = self._norm("layer_norm")
        self._projector = Projector(weights, spec.projector, spec.joined_size, 1, context)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.spec.shapes()

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.weights.load(_named(self.spec, tensors))

    @torch.inference_mode()
    def encode(self, payload: Payload) -> Encoded:
        if payload.modality != "audio":
            raise ValueError(f"the model has no encoder for {payload.modality}s")
        values, lengths = (payload.tensors.get(name) for name in ("audio_values", "audio_lens"))
        if values is None or lengths is None:
            given = ", ".join(payload.tensors) or "no tensors"
            raise ValueError(f"a sound comes as {given}, expected audio_values and audio_lens")
        spec, most = self.spec, 2 * self.spec.max_position
        if values.dim() != 3 or values.shape[1] != spec.mel_bins or not 0 < values.shape[2] <= most:
            raise ValueError(
                f"audio_values has shape {list(values.shape)}, expected [windows, {spec.mel_bins}, frames] of at most "
                f"{most} frames"
            )
        counts = [int(length) for length in lengths.flatten()]
        if len(counts) != len(values) or not all(0 < count <= values.shape[2] for count in counts):
            raise ValueError(f"audio_lens is {counts}, expected 1 to {values.shape[2]} for {len(values)} windows")
        found = [self._window(window, count) for window, count in zip(values, counts, strict=True)]
        return Encoded(torch.cat(found))

    def _window(self, values: torch.Tensor, frames: int) -> torch.Tensor:
        """values [mel bins, frames] → [embeddings, hidden]. What fills a window up is not seen; of its positions those
        are computed that become an embedding beside others."""
        spec, context = self.spec, self._context
        real = -(-frames // 2)
        count = -(-real // spec.stack) * spec.stack
        x = values[:, : 2 * count + _SEEN_BEHIND].T.to(context.device, context.dtype)
        for convolution, stride in zip(self._convolutions, (1, 2), strict=True):
            x = convolution(_triples(x, stride).to(context.dtype))
        x = x[:count] + self._positions[: min(count, len(x))]
        positions = torch.arange(len(x), device=context.device)
        texts = sequences([len(x)], context.device, None if len(x) == real else positions < real)
        batch = ForwardBatch(positions, positions, texts=texts)
        delta: Stream | None = None
        residual: Stream = x
        for layer in self._layers:
            delta, residual = layer(delta, residual, batch)
        hidden = joined(delta, residual, self._final_norm)
        assert isinstance(hidden, torch.Tensor)
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, count - len(hidden)))
        return self._projector(hidden.view(-1, spec.joined_size))


def native_audio_tower(described: Mapping[str, object], hidden: int, context: LayerContext) -> AudioTower | None:
    """That of a config.json, for a decoder of this hidden size; None where it is not known here."""
    try:
        return AudioTower(audio_spec_from_hf(described, hidden), context)
    except ConfigError:
        return None


def _triples(x: torch.Tensor, stride: int) -> torch.Tensor:
    """x [time, inputs] → [⌈time / stride⌉, 3 · inputs]: each step with those beside it, zeros where there are none."""
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1))
    return torch.cat([padded[first : first + len(x) : stride] for first in range(3)], dim=1)


def _named(spec: AudioSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """By the names that :class:`AudioTower` has, matrices with two dimensions."""
    known = spec.shapes()
    for stored, tensor in tensors:
        if _UNUSED.match(stored):
            continue
        name = stored.replace("multi_modal_projector.", "projector.", 1)
        name = _ENCODER.sub("", name)
        if tensor.dim() == 3:
            tensor = tensor.transpose(1, 2).flatten(1)
        # what has no place is refused by the name that it is stored under
        made = stored_as_multiplied(spec.projector, spec.joined_size, 1, name, tensor)
        yield (name if name in known else stored), made
