"""Audio encoders on our own layers: Whisper's (arXiv:2212.04356) with a projector, as in Ultravox and FunAudioChat, and
Dasheng's (arXiv:2406.06992)."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from msgspec.structs import replace

from ...layers.forward_batch import ForwardBatch
from ...layers.layer import Layer
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.quantized import Delta, Stream
from ...layers.linear.weights import WeightMap
from ...layers.norm import joined
from ...layers.rotary import RotaryTables
from ...model_config.config_fields import ConfigError
from ...model_config.towers.audio_hf import audio_spec_from_hf
from ...model_config.towers.audio_spec import BATCH_NORM, PATCH_FRAMES, AudioSpec
from ...model_config.towers.vision_spec import ProjectorSpec
from .payload import Encoded, Payload
from .tower import Tower, sequences
from .vision_projector import Projector, stored_as_multiplied

_ENCODER: Final = re.compile(r"\A(?:(?:continuous_)?audio_tower\.|audio_encoder\.)?(?:model\.encoder\.)?")
_UNUSED: Final = re.compile(
    r"\A(?:(?:audio_tower\.)?(?:model\.decoder|proj_out)|audio_invert_tower|continuous_audio_tower\.audio_bos_eos_token"
    r"|audio_encoder\.front_end|audio_encoder\.init_bn\.num_batches_tracked)(?:\.|\Z)"
)
"""Tensors of the rest of a Whisper model, and of a speech decoder."""
_UNITS: Final = re.compile(r"\Aaudio_tower\.(?:embed_tokens|output_matching)\.")
_SEEN_BEHIND: Final = 2
"""Frames that a position sees behind its own."""
_POSITIONS: Final = 1500
"""Positions of windows that go through the layers together."""
_MOST_SILENT: Final = 2
"""Most embeddings of a sound behind those of its frames."""
_BATCH_EPS: Final = 1e-5
_LONGEST: Final = 10_000.0
"""Positions of the slowest wave for one radian."""


class AudioTower(Tower):
    """Encodes the output of a model's processor: ``audio_values`` [windows, mel bins, frames], of which the first
    ``audio_lens`` [windows] frames are sound, and ``audio_embeddings``, their number, unless it follows from the
    windows."""

    def __init__(self, spec: AudioSpec, context: LayerContext) -> None:
        super().__init__(spec, context)
        self.spec = spec
        weights, context, hidden = self.weights, self._context, spec.hidden_size
        plain = replace(context, quantized=None)
        self._patches = _Patches(weights, spec, plain) if spec.patched else None
        convolutions = () if spec.patched else (("conv1", spec.mel_bins), ("conv2", hidden))
        self._convolutions = [
            Linear(weights, {name: hidden}, 3 * inputs, plain, bias=True, activation="gelu", dtype=context.stream)
            for name, inputs in convolutions
        ]
        if spec.learned:
            self._positions = self._table("embed_positions", spec.max_position)
        else:
            self._positions = _sinusoids(spec.max_position, hidden).to(context.device, context.stream)
        rotary = RotaryTables(1, 1, context)
        self._layers = [Layer(weights, layer, spec, rotary, context) for layer in range(len(spec.layers))]
        self._final_norm = self._norm(spec.final_norm)
        self._projector = Projector(weights, spec.projector, spec.joined_size, 1, context)
        self._groups = None if spec.groups is None else _Groups(weights, spec, context)

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
        spec, most = self.spec, self.spec.frames_a_position * self.spec.max_position
        if values.dim() != 3 or values.shape[1] != spec.mel_bins or not 0 < values.shape[2] <= most:
            raise ValueError(
                f"audio_values has shape {list(values.shape)}, expected [windows, {spec.mel_bins}, frames] of at most "
                f"{most} frames"
            )
        counts: list[int] = lengths.flatten().tolist()
        if len(counts) != len(values) or not all(0 < count <= values.shape[2] for count in counts):
            raise ValueError(f"audio_lens is {counts}, expected 1 to {values.shape[2]} for {len(values)} windows")
        if self._patches is not None:
            hidden = torch.cat([self._patched(window, count) for window, count in zip(values, counts, strict=True)])
            hidden = hidden[: len(hidden) // spec.stack * spec.stack]
            return Encoded(self._projector(self._final_norm.plain(hidden).view(-1, spec.joined_size)))
        if self._groups is None:
            found = [self._window(window, count) for window, count in zip(values, counts, strict=True)]
            return Encoded(torch.cat(found))
        embedded = [self._embedded(window, count, count) for window, count in zip(values, counts, strict=True)]
        together = max(1, _POSITIONS // spec.max_position)
        batches = [embedded[first : first + together] for first in range(0, len(embedded), together)]
        hidden = torch.cat([self._through_layers(torch.cat(each), [*map(len, each)]) for each in batches])
        return Encoded(self._groups(self._projector(self._final_norm.plain(_pairs(hidden))), payload))

    def _window(self, values: torch.Tensor, frames: int) -> torch.Tensor:
        """values [mel bins, frames] → [embeddings, hidden]. Padding is not seen; its positions are computed only if
        they share an embedding with others."""
        spec = self.spec
        real = -(-frames // 2)
        count = -(-real // spec.stack) * spec.stack
        x = self._embedded(values, 2 * count + _SEEN_BEHIND, 2 * count)
        hidden = self._final_norm.plain(self._through_layers(x, [len(x)], real))
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, count - len(hidden)))
        return self._projector(hidden.view(-1, spec.joined_size))

    def _patched(self, values: torch.Tensor, frames: int) -> torch.Tensor:
        """values [mel bins, frames] → [positions, hidden]. A frame stands behind those of the sound, and a patch that
        it completes is not seen by others."""
        assert self._patches is not None
        x = self._patches(values[:, : frames + 1])
        return self._through_layers(x + self._positions[: len(x)], [len(x)], frames // PATCH_FRAMES)

    def _embedded(self, values: torch.Tensor, seen: int, frames: int) -> torch.Tensor:
        """values [mel bins, frames], of which ``seen`` are read → [⌈frames / 2⌉, hidden]"""
        context, count = self._context, -(-frames // 2)
        x = values[:, :seen].T.to(context.device, context.dtype)
        for convolution, stride in zip(self._convolutions, (1, 2), strict=True):
            x = convolution(_triples(x, stride).to(context.dtype))
        return x[:count] + self._positions[: min(count, len(x))]

    def _through_layers(self, x: torch.Tensor, lengths: list[int], real: int = 0) -> torch.Tensor:
        """x [positions, hidden] of windows of these ``lengths``, with attention within each.

        ``real``: positions that may be seen of a single window; 0: all.
        """
        device = self._context.device
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        texts = sequences(lengths, device, positions < real if 0 < real < len(x) else None)
        batch = ForwardBatch(positions, positions, texts=texts)
        delta: Delta | None = None
        residual: Stream = x
        for layer in self._layers:
            delta, residual = layer(delta, residual, batch)
        hidden = joined(delta, residual, None)
        assert isinstance(hidden, torch.Tensor)
        return hidden


class _Patches:
    """Products of patches of all bins, whose values are normed bin by bin."""

    def __init__(self, weights: WeightMap, spec: AudioSpec, context: LayerContext) -> None:
        hidden, self._context = spec.hidden_size, context
        self._norm = [torch.empty(spec.mel_bins, device=context.place) for _ in BATCH_NORM]
        for part, tensor in zip(BATCH_NORM, self._norm, strict=True):
            weights.add(f"init_bn.{part}", tensor)
        self._product = Linear(
            weights,
            {"patch_embed.proj": hidden},
            PATCH_FRAMES * spec.mel_bins,
            context,
            bias=True,
            dtype=context.stream,
        )
        self._everywhere = context.empty(hidden, dtype=context.stream)
        """Added at each position: there is one row of patches."""
        weights.add("freq_pos_embed", self._everywhere)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """values [mel bins, frames] → [frames // :data:`PATCH_FRAMES`, hidden]"""
        mean, variance, weight, bias = self._norm
        x = (values.T.to(mean.device, torch.float32) - mean) * (variance + _BATCH_EPS).rsqrt() * weight + bias
        count = len(x) // PATCH_FRAMES
        patches = x[: count * PATCH_FRAMES].view(count, PATCH_FRAMES, -1).transpose(1, 2).flatten(1)
        return self._product(patches.to(self._context.dtype)) + self._everywhere


class _Groups:
    """Groups embeddings, as a :class:`...model_config.towers.audio_spec.SoundGroups` describes."""

    def __init__(self, weights: WeightMap, spec: AudioSpec, context: LayerContext) -> None:
        assert spec.groups is not None
        self._spec, inputs = spec.groups, spec.projector.products[-1].outputs
        product = self._spec.product
        self._product = Projector(weights, ProjectorSpec((product,)), inputs, 1, context)
        self._table, self._unit = None, None
        if self._spec.unit is not None:
            table, name = self._spec.unit
            self._table = context.empty(1, inputs, dtype=context.dtype)
            weights.add(f"{table}.weight", self._table)
            self._unit = Projector(weights, ProjectorSpec((replace(product, name=name),)), inputs, 1, context)

    def __call__(self, x: torch.Tensor, payload: Payload) -> torch.Tensor:
        """x [projected, outputs] → [embeddings, hidden]. Raises ValueError."""
        given, size = payload.tensors.get("audio_embeddings"), self._spec.size
        count = 0 if given is None or given.numel() != 1 else int(given)
        if not 0 < count <= len(x) // size + _MOST_SILENT:
            raise ValueError(f"audio_embeddings is {count}, expected what {len(x)} numbers of {size} each make")
        x = torch.nn.functional.pad(x[: count * size], (0, 0, 0, max(0, count * size - len(x))))
        grouped = self._product(x.view(count, size, -1).float().mean(dim=1).to(x.dtype))
        if self._unit is None or self._table is None:
            return grouped
        return grouped + self._unit(self._table)


def _pairs(x: torch.Tensor) -> torch.Tensor:
    """x [positions, hidden] → [positions // 2, hidden]: means of two; a single one is unchanged."""
    if len(x) < 2:
        return x
    return x[: len(x) // 2 * 2].view(-1, 2, x.shape[1]).float().mean(dim=1).to(x.dtype)


def _sinusoids(positions: int, hidden: int) -> torch.Tensor:
    """Sinusoidal positions [positions, hidden] (arXiv:1706.03762)."""
    half = hidden // 2
    steps = torch.exp(torch.arange(half) * (-math.log(_LONGEST) / max(1, half - 1)))
    angles = torch.arange(positions)[:, None] * steps
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def native_audio_tower(described: Mapping[str, object], hidden: int, context: LayerContext) -> AudioTower | None:
    """The tower of a config.json, for a decoder of this hidden size; None if it is not supported here."""
    try:
        return AudioTower(audio_spec_from_hf(described, hidden), context)
    except ConfigError:
        return None


def _triples(x: torch.Tensor, stride: int) -> torch.Tensor:
    """x [time, inputs] → [⌈time / stride⌉, 3 · inputs]: each step with its neighbours, padded with zeros."""
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1))
    return torch.cat([padded[first : first + len(x) : stride] for first in range(3)], dim=1)


def _named(spec: AudioSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under the names of :class:`AudioTower`, matrices with two dimensions."""
    known = spec.shapes()
    for stored, tensor in tensors:
        if _UNUSED.match(stored):
            continue
        name = stored.replace("multi_modal_projector.", "projector.", 1)
        name = _ENCODER.sub("", name)
        if _UNITS.match(stored) and spec.groups is not None:
            if spec.groups.unit is None:
                continue
            if name == f"{spec.groups.unit[0]}.weight":
                tensor = tensor[spec.groups.row : spec.groups.row + 1]
        if spec.patched and name == "time_pos_embed":
            name, tensor = "embed_positions.weight", tensor.flatten(0, 2).T
        elif spec.patched and name in known:
            tensor = tensor.view(known[name])  # a convolution with stride equal to its size, or one position
        elif tensor.dim() == 3:
            tensor = tensor.transpose(1, 2).flatten(1)
        # errors should give the stored name of an unknown tensor
        made = stored_as_multiplied(spec.projector, spec.joined_size, 1, name, tensor)
        yield (name if name in known else stored), made
