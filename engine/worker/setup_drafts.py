"""Whether a worker proposes drafts, and who does in it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.config import WorkerConfig

from ..layers.forward_batch import LayerCache
from ..layers.layer_context import LayerContext
from ..loading.checkpoint import Checkpoint, open_checkpoint
from ..model_config.attention_spec import CacheSpec
from ..model_config.model_spec import ModelSpec
from ..model_config.transformers_config import TransformersSpec
from ..models.decoder import Decoder
from .errors import SetupError
from .families import Family, Text
from .setup_parts import ProgressCallback, dtype_name, layer_context, load_weights
from .speculation import Draft, NgramProposer, Proposer

_OPTION: Final = "--speculative-config"


def settle_drafts(config: WorkerConfig, family: Family, device: torch.device) -> tuple[WorkerConfig, list[str]]:
    """The same where drafts can be verified; without drafts, and with a note, for a model that cannot take one back.

    Raises :class:`.errors.SetupError` where they are asked for in vain.
    """
    if config.speculative is None:
        return config, []
    if not isinstance(family, Text):
        raise SetupError(f"{_OPTION}: the model draws no text of its own, which alone is drafted; leave it out")
    if device.type != "cpu":
        raise SetupError(f"{_OPTION}: drafts are verified on a CPU, not on {device.type} yet; leave it out")
    if config.return_routed_experts:
        raise SetupError(f"{_OPTION}: experts of drafts are not told apart; leave --enable-return-routed-experts out")
    if family.spec.states:
        note = f"{_OPTION} has no effect: layers with a recurrent state cannot take drafts back"
        return msgspec.structs.replace(config, speculative=None), [note]
    return config, []


def make_proposer(config: WorkerConfig) -> Proposer | None:
    """None where no drafts are asked for, or a model proposes them."""
    asked = config.speculative
    if asked is None or asked.method != "ngram":
        return None
    return NgramProposer(
        config.max_num_seqs, asked.num_speculative_tokens, asked.prompt_lookup_min, asked.prompt_lookup_max
    )


@dataclass(frozen=True)
class DraftSource:
    """A model that proposes, before it is loaded. Its layers keep what they keep in the blocks of the model's that
    verifies: as further layers of that."""

    checkpoint: Checkpoint
    spec: ModelSpec
    most: int
    """Tokens that it proposes for a sequence in a step."""
    first_cache: int
    """Of all caches, which is that of its first layer."""

    def check_length(self, max_model_len: int) -> None:
        """Raises :class:`.errors.SetupError` where it cannot be as long as sequences are."""
        if max_model_len > self.spec.max_position:
            raise SetupError(
                f"{_OPTION}: sequences have up to {max_model_len} tokens, and the draft model was made for "
                f"{self.spec.max_position}: give --max-model-len {self.spec.max_position}"
            )

    def nbytes(self, config: WorkerConfig, context: LayerContext) -> int:
        """Of its weights, beside a model of this ``context``."""
        shapes = replace(self._context(config, context), shapes_only=True)
        return Decoder(self.spec, shapes, max_model_len=1).weights.total_bytes

    def load(
        self, config: WorkerConfig, context: LayerContext, max_model_len: int, progress: ProgressCallback
    ) -> Decoder:
        """Computes in the dtype of the model that verifies, whose ``context`` is given."""

        def make(context: LayerContext) -> Decoder:
            return Decoder(self.spec, context, max_model_len=max_model_len)

        own = self._context(config, context)
        return load_weights(make, Decoder.load, self.checkpoint, config, own, progress)

    def _context(self, config: WorkerConfig, context: LayerContext) -> LayerContext:
        online = "none" if self.checkpoint.quantized is not None else config.quantization
        plain = msgspec.structs.replace(config, enable_lora=False, quantization=online)
        return replace(layer_context(self.checkpoint, plain, context.device, context.dtype), packed=context.packed)


def open_draft(config: WorkerConfig, family: Family, longest: int) -> DraftSource | None:
    """The model that proposes, whose layers are added to those that ``family`` keeps blocks for; None where none does.

    ``longest``: see :meth:`.families.Family.longest`. Raises :class:`.errors.SetupError` for one that cannot propose
    here, and the loader's errors.
    """
    asked = config.speculative
    if asked is None or asked.method != "draft_model":
        return None
    assert isinstance(family, Text)
    checkpoint = open_checkpoint(Path(asked.model), "dummy" if config.load_format == "dummy" else "auto")
    spec = checkpoint.decoder
    if why := _unfit(config, spec, family.spec.vocab_size, longest):
        raise SetupError(f"{_OPTION}: {why}")
    first = len(family.spec.layers)
    first_cache = sum(len(group.layers) for group in family.groups)
    family.groups = (*family.groups, *(_behind(group, first) for group in spec.cache_groups))
    family.beside = (*family.beside, *checkpoint.files)
    return DraftSource(checkpoint, spec, asked.num_speculative_tokens, first_cache)


def _unfit(config: WorkerConfig, spec: ModelSpec, vocab_size: int, longest: int) -> str:
    """Why a model cannot propose; empty where it can."""
    if config.tensor_parallel_size > 1:
        return "a draft model is not split over workers; leave --tensor-parallel-size out"
    if isinstance(spec, TransformersSpec):
        return f"the draft model ({spec.architecture}) runs on transformers' code, expected one that is native here"
    if spec.states:
        return f"the draft model ({spec.architecture}) has recurrent states, which cannot take drafts back"
    if any(0 < group.window < longest for group in spec.cache_groups):
        return (
            f"layers of the draft model ({spec.architecture}) see a window of their tokens, expected ones that see all"
        )
    if spec.vocab_size != vocab_size:
        return (
            f"the draft model has a vocabulary of {spec.vocab_size} tokens, the model one of {vocab_size}: name one "
            "with the same tokenizer"
        )
    return ""


def _behind(group: CacheSpec, first: int) -> CacheSpec:
    return replace(group, layers=tuple(first + layer for layer in group.layers))


def draft_of(
    source: DraftSource | None, model: Decoder | None, caches: Sequence[LayerCache]
) -> tuple[Sequence[LayerCache], Draft | None]:
    """The caches of the model that verifies, of all, and what proposes with the rest."""
    if source is None or model is None:
        return caches, None
    return caches[: source.first_cache], Draft(model, caches[source.first_cache :], source.most)


def draft_lines(model: Decoder | None) -> list[MemoryLine]:
    """Of its weights, where a model proposes."""
    if model is None:
        return []
    return [MemoryLine("draft model", model.weights.total_bytes, dtype_name(model.context.dtype))]
