"""Media encoders for decoders and pooling models; see :class:`.family.Family`.

Text is computed as without media. Towers for pictures and sounds run on our own layers if their description is known,
otherwise on transformers' code. If neither works, or weights cannot be read, the model serves text only, and start-up
says why.
"""

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
import torch
from msgspec.structs import replace

from stentor.kernels.native.processor import multiplies_bfloat16
from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.config import StepLimits, WorkerConfig

from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightError
from ...loading.checkpoint import Checkpoint
from ...loading.errors import CheckpointError
from ...loading.weights import dummy_weights, tower_weights
from ...model_config.config_fields import ConfigError, Fields
from ...model_config.hf.mllama import states_of_picture
from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.latent_attention import LatentAttentionSpec
from ...model_config.spec.mlp import MoESpec
from ...model_config.spec.model import Backbone, ModelSpec
from ...model_config.towers.media_spec import MediaSpec, media_spec, prompt_token
from ...model_config.towers.vision_hf import vision_spec_from_hf
from ...model_config.towers.vision_spec import VisionSpec
from ...models.decoder import Decoder
from ...models.encoder import Encoder
from ...models.towers.audio_tower import native_audio_tower
from ...models.towers.tower import Tower
from ...models.towers.vision_tower import VisionTower, native_tower
from ...models.transformers.tower import TransformersTower
from ..errors import SetupError
from ..limits import ENCODINGS
from ..media.layout import MediaLayout, MediaReader
from ..media.rows import MediaRows, NoTower
from ..media.sliced_encoding import SlicedEncoding
from ..memory import GIB
from .family import Sizes, Text, TextModel
from .setup_parts import dtype_name

logger = logging.getLogger(__name__)

_CONTEXTS: Final = 4
"""The encoder cache holds at most the media of this many prompts of full length."""
_PICTURES: Final = 64
"""Most pictures that the encoder cache holds for layers of cross-attention."""
_LEAST_CACHE: Final = GIB // 4
_CACHE_SHARE: Final = 8
"""The encoder cache takes at most the KV cache's size divided by this, or on a host :data:`_LEAST_CACHE`."""
_TEXT_BESIDE: Final = 512
"""Tokens beside a picture in a prompt that is computed in one step."""
_JOINED: Final = 6144
"""Tokens from a prompt's first medium to its last if these see each other, which a step computes: five large pictures
of Molmo 2, or a video of 64 frames."""
_ROOM_SHARE: Final = 20
"""A device's memory divided by this, at most 1 GiB, is left for encoding, since the size of media is unknown."""


def sees(checkpoint: Checkpoint, config: WorkerConfig) -> MediaSpec | None:
    """The media that a checkpoint's model takes; None if it takes none, or they are disabled."""
    if config.language_model_only or not checkpoint.is_text_part:
        return None
    described = checkpoint.described
    return None if described is None else media_spec(described)


def with_prompts(media: MediaSpec | None, checkpoint: Checkpoint) -> MediaSpec:
    """The media, and embeddings that prompts bring. Raises SetupError for a model that can take none."""
    spec = checkpoint.config
    if not isinstance(spec, ModelSpec):
        raise SetupError(f"--enable-prompt-embeds: {spec.architecture} is no decoder of text on Stentor's own layers")
    networks = [network for layer in spec.layers for network in layer.networks]
    reads_tokens = (
        spec.per_layer is not None
        or spec.input.ngrams is not None
        or any(layer.ngrams is not None or layer.picture_gates is not None for layer in spec.layers)
        or any(isinstance(network, MoESpec) and network.table for network in networks)
    )
    if reads_tokens or (media is not None and media.added):
        raise SetupError(
            f"--enable-prompt-embeds: layers of {spec.architecture} read more of a prompt than the embeddings of its "
            "tokens; leave it out"
        )
    return replace(media or MediaSpec({}), prompt=prompt_token(spec.vocab_size))


class MediaEncoder:
    """Encodes media for a model that reads them: its tower, and the encoder cache beside the KV cache."""

    def __init__(self, checkpoint: Checkpoint, spec: Backbone, device: str, media: MediaSpec) -> None:
        """``spec``: of the text model."""
        self._checkpoint, self._spec, self._device, self._media = checkpoint, spec, device, media
        self._described: Mapping[str, object] = checkpoint.described or {}
        mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
        turning = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec | LatentAttentionSpec)]
        self._mrope = any(mixer.rope is not None and mixer.rope.axes for mixer in turning)
        self._sees_whole = any(mixer.whole_spans for mixer in mixers)
        networks = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoESpec)]
        self._has_experts = any(network.media or network.media_correction for network in networks)
        crossing = [layer.cross for layer in spec.layers if layer.picture_gates is not None and layer.cross is not None]
        self._keys_of_state = sum(2 * cross.kv_size for cross in crossing)
        """Numbers kept of each state of a picture to which tokens attend; 0: embeddings stand in place of tokens."""
        self._whole_prompts = isinstance(spec, ModelSpec) and spec.whole_prompts
        self._tower: TransformersTower | Tower | None = None
        self._missing = ""
        """Why there is no tower."""
        self._room = 0
        """Bytes of a device left for encoding."""

    def limits(self, limits: StepLimits) -> StepLimits:
        """The limits with those of encodings, and with room for a prompt that is computed in one step."""
        most, mixed = ENCODINGS[self._device]
        limits = msgspec.structs.replace(limits, max_encodings=most, max_mixed_encodings=mixed)
        if not self._whole_prompts and not self._media.joined:
            return limits
        chunk = max(limits.max_prefill_chunk, _JOINED if self._media.joined else self._positions() + _TEXT_BESIDE)
        step = max(limits.max_num_batched_tokens, chunk + limits.max_num_seqs)
        return msgspec.structs.replace(limits, max_prefill_chunk=chunk, max_num_batched_tokens=step)

    def _positions(self) -> int:
        """Embeddings of a picture; 0 if they follow from no description. Of a model that takes none, tokens of a text
        that a step computes."""
        if not self._media.placeholders:
            return min(self._spec.max_position, _JOINED)
        try:
            return vision_spec_from_hf(self._described, self._spec.output_size).max_position
        except ConfigError:
            return 0

    @property
    def layers(self) -> tuple[int, ...]:
        """Decoder layers behind which something is added to the stream."""
        return self._media.layers

    def mrope_tokens(self, step_tokens: int) -> int:
        """How many media tokens of a pass may have m-rope positions."""
        return step_tokens if self._mrope else 0

    def rows(self, backbone: Decoder | Encoder, seed: int) -> MediaRows | None:
        """Load the tower, or make dummy weights from ``seed``; None if there can be none, and prompts bring nothing."""
        tower = self._open_tower(backbone.context, seed) if self._media.placeholders else None
        if tower is None and self._media.prompt is None:
            return None
        decoder = backbone if isinstance(backbone, Decoder) else None
        stands = [*self._media.placeholders.values(), *([] if self._media.prompt is None else [self._media.prompt])]
        layout = MediaLayout(
            stands,
            self._spec.output_size,
            mrope=self._mrope,
            axes=self._media.axes,
            canvas=self._media.canvas,
            sees_whole=self._sees_whole,
            whole_prompts=self._whole_prompts,
            marks=self._media.marks if self._has_experts else None,
            joined=self._media.marks if self._media.joined else None,
            added=self._media.added,
        )
        reader = MediaReader(
            backbone.place_media,
            embed=None if decoder is None else decoder.embedded,
            keys=decoder.keys_of_media if self._keys_of_state and decoder is not None else None,
            given=None if decoder is None or self._media.prompt is None else decoder.given,
        )
        words = None if tower is None else tower.words()
        return MediaRows(tower or NoTower(), layout, reader, backbone.context.device, words)

    def _open_tower(self, context: LayerContext, seed: int) -> TransformersTower | Tower | None:
        """Load it, or make dummy weights from ``seed``; None if there can be none."""
        try:
            tower = self._make_tower(context)
            if self._checkpoint.format == "dummy":
                shapes = tower.shapes
                dummy = dummy_weights(shapes, 1.0, tower.dtype, context.device, seed, lambda done, total: None)
                tower.weights.load(dummy)
            else:
                with torch.inference_mode():
                    tower.load(tower_weights(self._checkpoint, tower.weights.raw))
        except (ConfigError, WeightError, CheckpointError) as error:
            self._missing = f"{error}"
            if self._whole_prompts:
                raise SetupError(f"{self._spec.architecture} cannot be served without its pictures: {error}") from error
            logger.warning("%s takes no media: %s", self._spec.architecture, error)
            return None
        tower.before_parts(SlicedEncoding.pause)
        self._tower = tower
        return tower

    def _make_tower(self, context: LayerContext) -> TransformersTower | Tower:
        dtype, stored = tower_dtype(context), self._checkpoint.tower
        # the tower is not part of the cached weights, whose layout is fixed before it exists; workers that split the
        # text each have it whole
        own_context = replace(context, dtype=dtype, memory=None, ranks=None, part=None)
        if stored is not None and isinstance(stored.projector, VisionSpec):
            if stored.quantized is not None:  # coded weights are multiplied as stored, with 16-bit activations
                own_context = replace(own_context, dtype=context.dtype, quantized=stored.quantized)
            return VisionTower(stored.projector, own_context)
        for native in (native_tower, native_audio_tower):
            own = native(self._described, self._spec.output_size, own_context)
            if own is not None:
                return own
        return TransformersTower(self._described, dtype, context.device)

    def weights(self) -> list[MemoryLine]:
        """The tower's memory."""
        if self._tower is None:
            return []
        what = f"{dtype_name(self._tower.dtype)}, of what sees or hears"
        return [MemoryLine("encoder of media", self._tower.weights.total_bytes, what)]

    def bytes(self, budget: int, longest: int, device_bytes: int) -> int:
        """Bytes for media out of the ``budget`` that a device has left for caches. Prompts that bring embeddings encode
        nothing."""
        if not self._takes:
            return 0
        kept = min(budget // (1 + _CACHE_SHARE), self._most(longest) * self._unit_bytes)
        self._room = 0 if self._tower is None else min(GIB, device_bytes // _ROOM_SHARE)
        return max(0, kept) + self._room

    def to_come(self, budget: int, longest: int) -> int:
        """Bytes of a device that media will take out of ``budget``, before the tower is loaded."""
        tower = self._checkpoint.tower
        if self._device == "cpu" or tower is None:
            return 0
        embeddings = _CONTEXTS * longest * self._spec.output_size * (1 + len(self._media.layers))
        return tower.nbytes + min(budget // (1 + _CACHE_SHARE), embeddings * torch.float32.itemsize)

    def memory(self, sizes: Sizes) -> list[MemoryLine]:
        """The memory of encoded media."""
        if not self._takes:
            return []
        capacity = self._capacity(sizes)
        what = f"{capacity:,} {'pictures' if self._keys_of_state else 'embeddings'} at most; taken as they come"
        lines = [MemoryLine("encoded media", capacity * self._unit_bytes, what)]
        if self._room:
            lines.append(MemoryLine("encoding", self._room, "left for it, not measured"))
        return lines

    def completed(self, ready: WorkerReady, config: WorkerConfig, sizes: Sizes) -> WorkerReady:
        """``ready`` with the media that this model takes."""
        notes = [*ready.notes]
        if self._missing:
            notes.append(f"no media are taken, text alone is served: {self._missing}")
        if not self._takes:
            return msgspec.structs.replace(ready, notes=notes)
        kinds = " and ".join(f"{each}s" for each in self._media.placeholders)
        if isinstance(self._tower, TransformersTower):
            notes.append(
                f"{kinds} are encoded by transformers' modelling code, an operation a call and one piece after "
                "another; --language-model-only leaves it out of a chat model"
            )
        whole = 0
        if self._sees_whole:
            whole = max(1, min(config.max_prefill_chunk, config.max_num_batched_tokens - config.max_num_seqs))
        # workers that split the text would not complete an encoding in the same step
        sliced = self._device == "cpu" and config.group_size == 1
        lasting = bool(self._keys_of_state)
        joined = self._media.joined
        kept = CacheGroup(
            "cross",
            capacity=self._capacity(sizes),
            sliced=sliced,
            whole=whole,
            whole_prompts=self._whole_prompts,
            joined=joined,
            lasting=lasting,
        )
        return msgspec.structs.replace(ready, notes=notes, groups=(*ready.groups, kept))

    @property
    def _takes(self) -> bool:
        """Whether anything stands in place of tokens."""
        return self._tower is not None or self._media.prompt is not None

    @property
    def _unit_bytes(self) -> int:
        """Bytes of what the encoder cache counts: an embedding, or the largest picture to which tokens attend."""
        dtype = torch.float32 if self._tower is None or self._media.prompt is not None else self._tower.dtype
        if self._keys_of_state:
            states = states_of_picture(Fields(Fields(self._described).table("vision_config") or {}))
            return states * self._keys_of_state * dtype.itemsize
        return self._spec.output_size * dtype.itemsize * (1 + len(self._media.layers))

    def _most(self, longest: int) -> int:
        """The most of these that the encoder cache holds."""
        return _PICTURES if self._keys_of_state else _CONTEXTS * longest

    def _capacity(self, sizes: Sizes) -> int:
        """Embeddings of the encoder cache."""
        least = _LEAST_CACHE if self._device == "cpu" or not sizes.block_bytes else 0
        room = max(least, sizes.blocks * sizes.block_bytes // _CACHE_SHARE)
        return max(1, min(self._most(sizes.max_model_len), room // self._unit_bytes))


class TextWithMedia(Text):
    """A decoder with a media encoder."""

    def __init__(self, checkpoint: Checkpoint, device: str, media: MediaSpec) -> None:
        super().__init__(checkpoint, device)
        self._encoder = MediaEncoder(checkpoint, self.spec, device, media)
        self.limits = self._encoder.limits(self.limits)
        self._step_tokens = 0

    def longest(self, config: WorkerConfig) -> int:
        self._step_tokens = config.max_num_batched_tokens
        return super().longest(config)

    def make(self, context: LayerContext, longest: int) -> TextModel:
        return Decoder(
            self.spec,
            context,
            max_model_len=longest,
            media_tokens=self._encoder.mrope_tokens(self._step_tokens),
            media_layers=self._encoder.layers,
        )

    def media_rows(self, config: WorkerConfig, model: TextModel) -> MediaRows | None:
        """Load the tower; None if there can be none."""
        assert isinstance(model, Decoder)
        return self._encoder.rows(model, config.seed)

    def memory(self, config: WorkerConfig, model: TextModel, sizes: Sizes) -> list[MemoryLine]:
        return [*self._encoder.weights(), *super().memory(config, model, sizes)]

    def media_bytes(self, budget: int, longest: int, device_bytes: int) -> int:
        return self._encoder.bytes(budget, longest, device_bytes)

    def media_memory(self, sizes: Sizes) -> list[MemoryLine]:
        return self._encoder.memory(sizes)

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: TextModel, sizes: Sizes) -> WorkerReady:
        return self._encoder.completed(super().completed(ready, config, model, sizes), config, sizes)


def tower_dtype(context: LayerContext) -> torch.dtype:
    """Dtype of a tower beside a decoder. torch multiplies bfloat16 on a CPU fast only with instructions for it."""
    if context.device.type == "cpu" and not multiplies_bfloat16():
        return torch.float32
    return context.dtype
