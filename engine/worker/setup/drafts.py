"""Sets up speculative decoding: which proposer a worker has."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import torch
from msgspec.structs import replace

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.config import BY_MODELS, DraftMethod, WorkerConfig

from ...layers.forward_batch import LayerCache
from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint, open_checkpoint
from ...loading.generation_config import GenerationConfig
from ...loading.safetensors_index import read_json
from ...loading.weight_files import weight_format, weight_index
from ...model_config.config_fields import ConfigError
from ...model_config.hf.assistant import assistant
from ...model_config.hf.block_drafter import block_head
from ...model_config.hf.draft_head import DraftHeadSpec, eagle_head, mtp_head, mtp_prefixes, stages_head
from ...model_config.spec.cache import CacheSpec
from ...model_config.spec.model import ModelSpec
from ...model_config.transformers_config import TransformersSpec
from ...models.decoder import Decoder
from ...models.draft_head import DraftHead
from ..errors import SetupError
from ..families.family import Family, Text
from ..families.setup_parts import ProgressCallback, dtype_name, layer_context, load_weights
from ..speculation import NgramProposer, Proposer, ProposingModel, SuffixProposer

_OPTION: Final = "--speculative-config"
Drafter = Decoder | DraftHead


def check_drafts(config: WorkerConfig, family: Family) -> None:
    """Raise :class:`..errors.SetupError` if drafts are requested but not supported."""
    if config.speculative is None:
        return
    if not isinstance(family, Text):
        raise SetupError(f"{_OPTION}: the model draws no text of its own, which alone is drafted; leave it out")
    if config.return_routed_experts:
        raise SetupError(f"{_OPTION}: experts of drafts are not told apart; leave --enable-return-routed-experts out")


def make_proposer(config: WorkerConfig) -> Proposer | None:
    """The proposer; None if drafts are disabled, or a model proposes them."""
    asked = config.speculative
    if asked is None or asked.method in BY_MODELS:
        return None
    if asked.method == "suffix":
        return SuffixProposer(config.max_num_seqs, asked)
    return NgramProposer(
        config.max_num_seqs, asked.num_speculative_tokens, asked.prompt_lookup_min, asked.prompt_lookup_max
    )


class DraftSource(msgspec.Struct, frozen=True):
    """A draft model or draft head that is not loaded. Its caches are further layers of the verifying model's, in the
    same blocks."""

    checkpoint: Checkpoint
    spec: ModelSpec | DraftHeadSpec
    most: int
    """Most tokens that it proposes for a sequence in a step."""
    model: ModelSpec
    """The verifying model."""
    first_cache: int
    """Index of its first layer's cache among all caches."""
    within: tuple[str, ...] = ("",)
    """Prefixes of its tensors in a checkpoint that holds others too."""

    @property
    def layers(self) -> ModelSpec:
        return self.spec if isinstance(self.spec, ModelSpec) else self.spec.backbone

    def check_length(self, max_model_len: int) -> None:
        """Raise :class:`..errors.SetupError` if its context is shorter than ``max_model_len``."""
        if max_model_len > self.layers.max_position:
            raise SetupError(
                f"{_OPTION}: sequences have up to {max_model_len} tokens, and the draft model was made for "
                f"{self.layers.max_position}: give --max-model-len {self.layers.max_position}"
            )

    def nbytes(self, config: WorkerConfig, context: LayerContext) -> int:
        """Bytes of its weights beside a model of this ``context``."""
        shapes = replace(self._context(config, context), shapes_only=True)
        if isinstance(self.spec, ModelSpec):
            return Decoder(self.spec, shapes, max_model_len=1).weights.total_bytes
        return DraftHead(self.spec, self.model, shapes, 1).weights.total_bytes

    def load(self, config: WorkerConfig, model: Decoder, max_model_len: int, progress: ProgressCallback) -> Drafter:
        """Load it, in the dtype of the verifying ``model``."""
        own = self._context(config, model.context)
        spec = self.spec
        if isinstance(spec, ModelSpec):
            make = partial(Decoder, spec, max_model_len=max_model_len)
            return load_weights(make, Decoder.load, self.checkpoint, config, own, progress)

        within = ("",) if self.checkpoint.format == "dummy" else self.within

        def fill(head: DraftHead, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
            head.load((name, tensor) for name, tensor in tensors if name.startswith(within))

        def make_head(context: LayerContext) -> DraftHead:
            return DraftHead(spec, model, context, max_model_len)

        return load_weights(make_head, fill, self.checkpoint, config, own, progress, stored_as=spec.stored_as)

    def _context(self, config: WorkerConfig, context: LayerContext) -> LayerContext:
        online = "none" if self.checkpoint.quantized is not None else config.quantization
        plain = msgspec.structs.replace(config, enable_lora=False, quantization=online)
        own = replace(layer_context(self.checkpoint, plain, context.device, context.dtype), packed=context.packed)
        if own.quantized is None or isinstance(self.spec, ModelSpec):
            return own
        return replace(own, quantized=replace(own.quantized, stored_as=self.spec.stored_as))


def open_draft(config: WorkerConfig, family: Family) -> DraftSource | None:
    """Open the draft model or head, and add its layers to the groups of ``family``; None if no model proposes.

    Raises :class:`..errors.SetupError` if it cannot propose here, and the loader's errors.
    """
    asked = config.speculative
    if asked is None or asked.method not in BY_MODELS:
        return None
    assert isinstance(family, Text)
    if config.group_size > 1:
        raise SetupError(f"{_OPTION}: what drafts is not split over workers; let one worker have the model")
    model = family.spec
    source = DraftSource(
        family.checkpoint, model, asked.num_speculative_tokens, model, sum(len(group.layers) for group in family.groups)
    )
    path = Path(asked.model)
    if asked.method == "draft_model":
        checkpoint = open_checkpoint(path, "dummy" if config.load_format == "dummy" else "auto")
        if why := _unfit(checkpoint.decoder, model.vocab_size):
            raise SetupError(f"{_OPTION}: {why}")
        source = replace(source, checkpoint=checkpoint, spec=checkpoint.decoder)
    elif isinstance(model, TransformersSpec):
        raise SetupError(f"{_OPTION}: {model.architecture} runs on transformers' code, which keeps no hidden states")
    else:
        try:
            source = _headed(source, path if asked.model else None, asked.method)
        except ConfigError as error:
            raise SetupError(f"{_OPTION}: {asked.model or model.architecture}: {error}") from error
    first = len(model.layers)
    family.groups = (*family.groups, *(_behind(group, first) for group in source.layers.cache_groups))
    family.beside = (*family.beside, *source.checkpoint.files)
    return source


def _headed(source: DraftSource, path: Path | None, method: DraftMethod) -> DraftSource:
    """The source with the head or assistant of the checkpoint at ``path``, or the model's own head.

    Raises :class:`...model_config.config_fields.ConfigError` if there is none that fits.
    """
    model = source.model
    if path is None and (stages := model.stages) is not None:
        return replace(source, spec=stages_head(model, stages, source.most), within=(stages.prefix,))
    if path is None and method == "dspark":
        raise ConfigError("it has no stages that draft blocks; give the head as model")
    if path is None:
        return replace(source, spec=mtp_head(model), within=mtp_prefixes(model))
    described, tensors = read_json(path / "config.json"), weight_index(path)
    names, files = [tensor.name for tensor in tensors], tuple(dict.fromkeys(tensor.file for tensor in tensors))
    dtype = source.checkpoint.dtype
    checkpoint = Checkpoint(weight_format(files), path, files, model, dtype, GenerationConfig())
    if method == "mtp":
        spec = assistant(described, model)
    elif method in ("dflash", "dspark"):
        if (path / "mask_embedding.pt").exists():
            raise ConfigError("it has a mask_embedding.pt, which is not read here; expected masks that are a token")
        spec = block_head(described, names, model, source.most, method)
    else:
        spec = eagle_head(described, names, model, third=method == "eagle3")
    return replace(source, checkpoint=checkpoint, spec=spec)


def _unfit(spec: ModelSpec, vocab_size: int) -> str:
    """Why a model cannot propose; "" if it can."""
    if isinstance(spec, TransformersSpec):
        return f"the draft model ({spec.architecture}) runs on transformers' code, expected one that is native here"
    if spec.states:
        return f"the draft model ({spec.architecture}) has recurrent states, which cannot take drafts back"
    if spec.vocab_size != vocab_size:
        return (
            f"the draft model has a vocabulary of {spec.vocab_size} tokens, the model one of {vocab_size}: name one "
            "with the same tokenizer"
        )
    return ""


def _behind(group: CacheSpec, first: int) -> CacheSpec:
    """The group of what drafts. Layers with a window keep all tokens: they may be a block behind the model's."""
    kind = "full" if group.kind == "window" else group.kind
    return replace(group, kind=kind, window=0, layers=tuple(first + layer for layer in group.layers))


def draft_of(
    source: DraftSource | None, model: Drafter | None, caches: Sequence[LayerCache]
) -> tuple[Sequence[LayerCache], ProposingModel | None]:
    """The caches of the verifying model, and the proposing model with the rest of the caches, or the same."""
    if source is None or model is None:
        return caches, None
    own, behind = caches[: source.first_cache], caches[source.first_cache :]
    shares = isinstance(model, DraftHead) and model.spec.shares_keys
    return own, ProposingModel(model, own if shares else behind, source.most)


def draft_lines(model: Drafter | None) -> list[MemoryLine]:
    """The memory of the draft model's weights."""
    if model is None:
        return []
    what = "draft head" if isinstance(model, DraftHead) else "draft model"
    return [MemoryLine(what, model.weights.total_bytes, dtype_name(model.context.dtype))]
