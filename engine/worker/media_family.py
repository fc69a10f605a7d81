"""Decoders that take media in their prompts: see :class:`.families.Family`.

Text is computed as ever. What sees is a tower on our own layers where its description is known, and transformers' code
elsewhere, as is what hears; where neither can run a model's, or read its weights, the model is served for text alone,
and start-up says why.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.config import WorkerConfig

from ..layers.layer_context import LayerContext
from ..layers.weights import WeightError
from ..loading.checkpoint import Checkpoint
from ..loading.errors import CheckpointError
from ..loading.weights import dummy_weights, tower_weights
from ..model_config.attention_spec import AttentionSpec
from ..model_config.config_fields import ConfigError
from ..model_config.media_spec import MediaSpec, media_spec
from ..model_config.model_spec import ModelSpec
from ..models.decoder import Decoder
from ..models.transformers_tower import TransformersTower
from ..models.vision_tower import VisionTower, native_tower
from .families import Sizes, Text, TextModel
from .limits import ENCODINGS
from .media_rows import MediaRows
from .memory import GIB
from .setup_parts import dtype_name
from .sliced_encoding import SlicedEncoding

logger = logging.getLogger(__name__)

_CONTEXTS: Final = 4
"""Prompts of the longest context, of which what is encoded may be kept."""
_LEAST_CACHE: Final = GIB // 4
_CACHE_SHARE: Final = 8
"""What is encoded takes at most this part of what the KV cache takes, or on a host :data:`_LEAST_CACHE`."""
_ROOM_SHARE: Final = 20
"""Of a device, or 1 GiB if that is less, is left for what encoding takes: how large media are nobody knows."""


def sees(checkpoint: Checkpoint, config: WorkerConfig) -> MediaSpec | None:
    """What media a checkpoint's model takes; None where it takes none, or is to take none."""
    spec = checkpoint.config
    if config.language_model_only or not isinstance(spec, ModelSpec) or not spec.text_part:
        return None
    described = checkpoint.described
    return None if described is None else media_spec(described)


class TextWithMedia(Text):
    """A decoder and its tower. What is encoded is kept beside the KV cache, as much as of a few contexts."""

    def __init__(self, checkpoint: Checkpoint, device: str, media: MediaSpec) -> None:
        super().__init__(checkpoint, device)
        most, mixed = ENCODINGS[device]
        self.limits = msgspec.structs.replace(self.limits, max_encodings=most, max_mixed_encodings=mixed)
        self._media = media
        self._described: Mapping[str, object] = checkpoint.described or {}
        mixers = [layer.mixer for layer in self.spec.layers if isinstance(layer.mixer, AttentionSpec)]
        self._turns = any(mixer.rope is not None and mixer.rope.axes for mixer in mixers)
        self._sees_whole = any(mixer.whole_spans for mixer in mixers)
        self._step_tokens = 0
        self._tower: TransformersTower | VisionTower | None = None
        self._missing = ""
        """Why there is none."""
        self._room = 0
        """Bytes of a device that are left for what encoding takes."""

    def longest(self, config: WorkerConfig) -> int:
        self._step_tokens = config.max_num_batched_tokens
        return super().longest(config)

    def make(self, context: LayerContext, longest: int) -> TextModel:
        return Decoder(
            self.spec,
            context,
            max_model_len=longest,
            media_tokens=self._step_tokens if self._turns else 0,
            media_layers=range(self._media.layers),
        )

    def media_rows(self, config: WorkerConfig, model: TextModel) -> MediaRows | None:
        """Loads the tower; None where it cannot be."""
        assert isinstance(model, Decoder)
        context = model.context
        try:
            tower = self._make_tower(context)
            if self.checkpoint.format == "dummy":
                shapes = tower.shapes
                dummy = dummy_weights(shapes, 1.0, tower.dtype, context.device, config.seed, lambda done, total: None)
                tower.weights.load(dummy)
            else:
                with torch.inference_mode():
                    tower.load(tower_weights(self.checkpoint, tower.weights.raw))
        except (ConfigError, WeightError, CheckpointError) as error:
            self._missing = f"{error}"
            logger.warning("%s takes no media: %s", self.spec.architecture, error)
            return None
        tower.before_parts(SlicedEncoding.pause)
        self._tower = tower
        return MediaRows(
            tower,
            self._media.placeholders.values(),
            model.place_media,
            context.device,
            turns=self._turns,
            sees_whole=self._sees_whole,
            hidden=self.spec.hidden_size,
            behind_frames=self._media.behind_frames,
            words=tower.words(),
        )

    def _make_tower(self, context: LayerContext) -> TransformersTower | VisionTower:
        dtype, stored = tower_dtype(context), self.checkpoint.tower
        # what outlives a worker is laid out before there is a tower
        own_context = replace(context, dtype=dtype, memory=None)
        if stored is not None and stored.projector is not None:
            if stored.quantized is not None:  # codes are multiplied as they are, beside activations of 16 bits
                own_context = replace(own_context, dtype=context.dtype, quantized=stored.quantized)
            return VisionTower(stored.projector, own_context)
        own = native_tower(self._described, self.spec.hidden_size, own_context)
        return own or TransformersTower(self._described, dtype, context.device)

    def memory(self, config: WorkerConfig, model: TextModel, sizes: Sizes) -> list[MemoryLine]:
        lines = super().memory(config, model, sizes)
        if self._tower is None:
            return lines
        what = f"{dtype_name(self._tower.dtype)}, of what sees or hears"
        return [MemoryLine("encoder of media", self._tower.weights.total_bytes, what), *lines]

    def media_bytes(self, budget: int, longest: int, device_bytes: int) -> int:
        if self._tower is None:
            return 0
        kept = min(budget // (1 + _CACHE_SHARE), _CONTEXTS * longest * self._embedding_bytes(self._tower))
        self._room = min(GIB, device_bytes // _ROOM_SHARE)
        return max(0, kept) + self._room

    def media_memory(self, sizes: Sizes) -> list[MemoryLine]:
        if self._tower is None:
            return []
        capacity = self._capacity(sizes)
        what = f"{capacity:,} embeddings at most; taken as they come"
        lines = [MemoryLine("encoded media", capacity * self._embedding_bytes(self._tower), what)]
        if self._room:
            lines.append(MemoryLine("encoding", self._room, "left for it, not measured"))
        return lines

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: TextModel, sizes: Sizes) -> WorkerReady:
        ready = super().completed(ready, config, model, sizes)
        if self._tower is None:
            note = f"no media are taken, text alone is served: {self._missing}"
            return msgspec.structs.replace(ready, notes=[*ready.notes, note])
        kinds = " and ".join(f"{each}s" for each in self._media.placeholders)
        notes = [*ready.notes]
        if isinstance(self._tower, TransformersTower):
            notes.append(
                f"{kinds} are encoded by transformers' modelling code, an operation a call and one piece after "
                "another; --language-model-only leaves it out"
            )
        whole = 0
        if self._sees_whole:
            whole = max(1, min(config.max_prefill_chunk, config.max_num_batched_tokens - config.max_num_seqs))
        kept = CacheGroup("cross", capacity=self._capacity(sizes), sliced=self._device == "cpu", whole=whole)
        return msgspec.structs.replace(ready, notes=notes, groups=(*ready.groups, kept))

    def _embedding_bytes(self, tower: TransformersTower | VisionTower) -> int:
        return self.spec.hidden_size * tower.dtype.itemsize * (1 + self._media.layers)

    def _capacity(self, sizes: Sizes) -> int:
        """Embeddings that are kept."""
        assert self._tower is not None
        least = _LEAST_CACHE if self._device == "cpu" else 0
        room = max(least, sizes.blocks * sizes.block_bytes // _CACHE_SHARE)
        return max(1, min(_CONTEXTS * sizes.max_model_len, room // self._embedding_bytes(self._tower)))


def tower_dtype(context: LayerContext) -> torch.dtype:
    """Of a tower beside a decoder of this context: torch multiplies bfloat16 on a CPU only where that has instructions
    for it."""
    if context.device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        return torch.float32
    return context.dtype
