"""Pooling models: vectors and scores of prompts. See :class:`.family.Family`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.config import StepLimits, WorkerConfig
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...loading.weights import tensors_from
from ...model_config.encoders.pooling import PoolingConfig
from ...model_config.encoders.transformers_config import TransformersEncoder
from ...model_config.spec.encoder import EncoderConfig
from ...model_config.spec.model import ModelSpec, dense_mlp
from ...model_config.towers.media_spec import MediaSpec
from ...models.pooling_model import PoolingModel
from ..adapters.setup import adapter_lines, as_adapted
from ..adapters.store import AdapterStore
from ..caches import block_groups_of, kv_block_bytes
from ..errors import SetupError
from ..limits import POOLING
from ..memory import format_bytes
from ..passes.adapter_rows import AdapterRowsOf
from ..rows.extras import JoinedExtras, RowExtras
from .family import Family, FormerSizes, Sizes, cache_line
from .media import MediaEncoder
from .pooling_rows import PoolingRows
from .setup_parts import block_needs, check_plain, longest_of

_TRIAL_TOKENS: Final = 16
_VALUES_A_SLICE: Final = 1 << 29
"""Weights that two cores multiply by one token in 2 to 3 ms."""
_LEAST_MIXED: Final = 32
_NOTE: Final = (
    "runs on transformers' modelling code, slower than a native model: an operation a call, texts of one length at once"
)


class PoolingFamily(Family):
    """A pooling model. With causal attention alone it has a KV cache; otherwise a prompt is computed in one step.

    Media in prompts are encoded as for a decoder.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, media: MediaSpec | None = None) -> None:
        """``media``: the media that the model takes."""
        self.checkpoint = checkpoint
        self.spec = spec = checkpoint.own_pooling
        self.packs = not isinstance(spec.backbone, TransformersEncoder)
        self.groups = ()
        if spec.cached and isinstance(spec.backbone, ModelSpec):
            self.groups = spec.backbone.cache_groups
        self.beside = [_file(checkpoint.folder, name) for name in spec.beside]
        self.limits = suited_limits(spec, device)
        self._encoder: MediaEncoder | None = None
        if media is not None:
            self._encoder = MediaEncoder(checkpoint, spec.backbone, device, media)
            self.limits = self._encoder.limits(self.limits)
        self._step_tokens = 0

    @property
    def has_encoder(self) -> bool:
        """Whether it has a media encoder, which may use torch's threads."""
        return self._encoder is not None

    def longest(self, config: WorkerConfig) -> int:
        if not self.packs:
            check_plain(config)
        longest = longest_of(config, self.spec.backbone, self.spec.max_length)
        backbone = self.spec.backbone
        if isinstance(backbone, EncoderConfig) and backbone.filled and longest < backbone.max_position:
            raise SetupError(
                f"--max-model-len {longest}: texts are filled up to the {backbone.max_position} tokens that the model "
                "was trained with; leave it out"
            )
        self._step_tokens = max(config.max_num_batched_tokens, 0 if self.groups else longest)
        return longest

    def make(self, context: LayerContext, longest: int) -> PoolingModel:
        if self._encoder is None:
            return PoolingModel(self.spec, context, max_model_len=longest)
        media_tokens, media_layers = self._encoder.mrope_tokens(self._step_tokens), self._encoder.layers
        return PoolingModel(self.spec, context, longest, media_tokens=media_tokens, media_layers=media_layers)

    def fill(self, model: PoolingModel, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        model.load(tensors, lambda name: tensors_from(_file(self.checkpoint.folder, name)))

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], PoolingModel],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        """Blocks for as many prompts as run at once, as far as memory allows."""
        if self._encoder is not None:
            budget -= self._encoder.to_come(budget, longest)
        if not self.groups:
            return Sizes(config.max_num_seqs * -(-longest // config.block_size), longest, 0)
        block_groups = block_groups_of(self.groups, longest)
        block_bytes = kv_block_bytes(self.groups, config.block_size, cache_dtype, block_groups)
        if former is not None:
            return Sizes(former.blocks, longest, block_bytes, block_groups)
        each = block_needs(config, block_groups).of(longest)
        blocks = min(budget // block_bytes, config.max_num_seqs * each)
        if blocks < each:
            raise SetupError(
                f"{format_bytes(max(budget, 0))} of KV cache do not hold one prompt of {longest} tokens, which needs "
                f"{format_bytes(each * block_bytes)}: raise --kv-cache-memory or lower --max-model-len"
            )
        return Sizes(blocks, longest, block_bytes, block_groups)

    def extras(self, config: WorkerConfig, model: PoolingModel, sizes: Sizes) -> RowExtras:
        media = None if self._encoder is None else self._encoder.rows(model.reader, config.seed)
        parts: list[RowExtras] = [] if media is None else [media]
        parts.append(PoolingRows(model))
        if (places := model.context.adapters) is not None:
            parts.append(AdapterRowsOf(AdapterStore(places, config.max_lora_rank, model.context.device)))
        return JoinedExtras(parts) if len(parts) > 1 else parts[0]

    def first_steps(self, config: WorkerConfig, model: PoolingModel, sizes: Sizes) -> list[StepPlan]:
        length = max(1, min(_TRIAL_TOKENS, config.block_size, sizes.max_model_len))
        tokens = [token % self.spec.vocab_size for token in range(1, length + 1)]
        blocks = [0] * max(1, len(sizes.block_groups))
        row = NewRow(0, tokens, length, SamplingParams(max_tokens=0), 0, blocks, pooling=Pooling(model.tasks[0]))
        plan = StepPlan(0, 0, [], [row], [RowStep(0, 0, length, [], False)])
        return [plan, *as_adapted([plan])] if config.enable_lora else [plan]

    def memory(self, config: WorkerConfig, model: PoolingModel, sizes: Sizes) -> list[MemoryLine]:
        lines = [cache_line(config, sizes)] if self.groups else []
        lines += adapter_lines(config, model.context.adapters)
        return lines if self._encoder is None else [*self._encoder.weights(), *lines, *self._encoder.memory(sizes)]

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: PoolingModel, sizes: Sizes) -> WorkerReady:
        notes = [*ready.notes]
        if not self.packs:
            notes.append(f"{self.spec.architecture} {_NOTE}")
        ready = msgspec.structs.replace(ready, notes=notes)
        return ready if self._encoder is None else self._encoder.completed(ready, config, sizes)


def suited_limits(model: PoolingConfig, device: str) -> StepLimits:
    """Default limits for ``cpu`` or ``cuda``.

    On a CPU, other models wait for what a step computes before it yields: one layer of an encoder, or all of a model
    with a cache. The tokens of a step beside others are limited so that this takes about a slice of the lease, within
    bounds.
    """
    limits = POOLING[device]
    if device != "cpu":
        return limits
    backbone = model.backbone
    if isinstance(backbone, TransformersEncoder):
        return limits  # it yields between texts of any length
    if isinstance(backbone, ModelSpec):
        values = backbone.products(0) * (len(backbone.layers) if model.cached else 1)
    else:
        values = (4 * backbone.hidden_size + 3 * dense_mlp(backbone).inner) * backbone.hidden_size
    mixed = max(_LEAST_MIXED, min(limits.max_mixed_prefill_tokens, _VALUES_A_SLICE // values))
    return msgspec.structs.replace(limits, max_mixed_prefill_tokens=mixed)


def _file(folder: Path, name: str) -> Path:
    """A file beside the model, or the weights in a module's folder."""
    path = folder / name
    if path.is_dir():
        path = path / "model.safetensors"
        if not path.is_file():
            path = path.with_name("pytorch_model.bin")
    return path
