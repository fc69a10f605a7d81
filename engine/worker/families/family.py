"""The differences between kinds of models in set-up: limits, the division of memory, the first steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.cache_groups import NO_HOST, CacheGroup, HostSizes
from stentor.protocols.ipc.config import StepLimits, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowInput, RowSpan, RowStep, StepPlan

from ...layers.linear.layer_context import LayerContext
from ...layers.linear.rank_group import RankGroup
from ...loading.checkpoint import Checkpoint
from ...model_config.config_fields import ConfigError
from ...model_config.spec.cache import CacheSpec
from ...models.decoder import Decoder
from ...models.transformers.decoder import TransformersDecoder
from ..adapters.setup import adapter_lines, as_adapted
from ..adapters.store import AdapterStore
from ..caches import BlockGroup, block_groups_of, host_memory, kv_block_bytes, of_groups
from ..device.graphs import graph_sizes
from ..errors import SetupError
from ..limits import SUITED
from ..media.rows import MediaRows
from ..memory import format_bytes
from ..passes.adapter_rows import AdapterRowsOf
from ..rows.extras import RowExtras, joined
from ..rows.routed_rows import RoutedRows, expert_shape
from ..rows.states import RowStates, StateDTypes
from .setup_parts import fit_length, longest_of

TextModel = Decoder | TransformersDecoder

_FIRST_TOKENS: Final = 16
_NAMED_BLOCKS: Final = 1 << 17
"""Blocks of a model that stores nothing a token. They take no memory of the worker and about a hundred bytes each of
the engine, which uses them to identify prefixes."""


class FormerSizes(msgspec.Struct, frozen=True):
    """The sizes of a former worker, on which the engine relies."""

    blocks: int
    max_model_len: int
    num_states: int = 0


class Sizes(msgspec.Struct, frozen=True):
    """The division of memory."""

    blocks: int
    """Blocks of the KV cache; without one, as many as the running sequences would take."""
    max_model_len: int
    block_bytes: int
    block_groups: tuple[BlockGroup, ...] = ()
    encoder_slots: int = 0
    slot_bytes: int = 0
    """Bytes of an encoder slot."""
    num_states: int = 0
    """Slots of recurrent states."""
    state_bytes: int = 0
    """Of a recurrent state."""
    host: HostSizes = NO_HOST
    """Of the host tier."""


def agreed(sizes: Sizes, ranks: RankGroup | None) -> Sizes:
    """The sizes that all ranks have memory for."""
    if ranks is None:
        return sizes
    blocks, length, states = map(ranks.least, (sizes.blocks, sizes.max_model_len, sizes.num_states))
    return replace(sizes, blocks=blocks, max_model_len=length, num_states=states)


class Family(ABC):
    """A kind of model, with one checkpoint of it: how its memory is divided, and what its rows need besides tokens.

    Called by a worker's set-up (:mod:`..setup.decoder`).
    """

    checkpoint: Checkpoint
    groups: Sequence[CacheSpec] = ()
    """Layers of the KV cache; empty if nothing is stored a token."""
    beside: Sequence[Path] = ()
    """Files read besides those of the checkpoint."""
    packs = True
    """Whether its weights are packed for a CPU."""
    no_room = ""
    """Advice for a device without memory for its largest step."""
    limits: StepLimits
    """Default limits of a step."""

    @abstractmethod
    def longest(self, config: WorkerConfig) -> int:
        """The longest sequence before the cache is sized. Raises :class:`..errors.SetupError` for an impossible
        request."""

    @abstractmethod
    def make(self, context: LayerContext, longest: int) -> Any:
        """Make the model without weights. May raise :class:`...model_config.config_fields.ConfigError`."""

    def made(self, context: LayerContext, longest: int) -> Any:
        """The model without weights. Raises :class:`..errors.SetupError` where its files cannot be read as one."""
        try:
            return self.make(context, longest)
        except ConfigError as error:
            raise SetupError(f"{self.checkpoint.folder}: {error}") from error

    def fill(self, model: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the checkpoint's weights into the model."""
        model.load(tensors)

    @abstractmethod
    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], Any],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        """Divide ``budget`` bytes. ``model`` makes a model, of which only shapes are used. Raises
        :class:`..errors.SetupError`."""

    def largest_step(self, config: WorkerConfig, longest: int) -> tuple[StepPlan, Sizes] | None:
        """A step that takes the most memory, and the sizes to run it with; None if half of the rest is left for
        steps."""
        return None

    @abstractmethod
    def extras(self, config: WorkerConfig, model: Any, sizes: Sizes) -> RowExtras | None:
        """The extras of its rows, with their memory; None if there are none."""

    @abstractmethod
    def first_steps(self, config: WorkerConfig, model: Any, sizes: Sizes) -> list[StepPlan]:
        """Steps of row 0 that use the model as requests will."""

    @abstractmethod
    def memory(self, config: WorkerConfig, model: Any, sizes: Sizes) -> list[MemoryLine]:
        """Its memory besides weights."""

    @abstractmethod
    def completed(self, ready: WorkerReady, config: WorkerConfig, model: Any, sizes: Sizes) -> WorkerReady:
        """``ready`` with the properties of this kind of model."""


def size_cache(
    config: WorkerConfig,
    groups: Sequence[CacheSpec],
    longest: int,
    cache_dtype: torch.dtype,
    budget: int,
    former: FormerSizes | None = None,
) -> Sizes:
    """Sizes with ``longest`` cut to what the blocks hold. A context length set by the operator must fit."""
    block_groups = block_groups_of(groups, longest)
    block_bytes = kv_block_bytes(groups, config.block_size, cache_dtype, block_groups)
    if former is not None:
        return Sizes(former.blocks, former.max_model_len, block_bytes, block_groups)
    if not groups:
        return Sizes(named_blocks(config, longest), longest, 0)
    blocks = budget // block_bytes
    return Sizes(
        blocks, fit_length(config, longest, blocks, block_bytes, budget, block_groups), block_bytes, block_groups
    )


def named_blocks(config: WorkerConfig, longest: int) -> int:
    """Blocks of a model of recurrent layers: enough for a sequence of greatest length, and for no more than run at
    once."""
    each = -(-longest // config.block_size)
    return max(each, min(_NAMED_BLOCKS, config.max_num_seqs * each))


def fit_states(config: WorkerConfig, each: int, budget: int, *, alone: bool = False) -> int:
    """Number of slots for recurrent states of ``each`` bytes.

    Two for each row, and more for prefixes: within half of the budget, or within all of it if states are the only cache
    (``alone``), up to a limit. With drafts a row takes a third place, which is no slot. Raises
    :class:`..errors.SetupError` if not even one row fits.
    """
    drafts = config.speculative is not None
    found = min((3 + drafts) * config.max_num_seqs + 64, (budget if alone else budget // 2) // each)
    if drafts:
        found -= min(config.max_num_seqs, -(-found // 3))
    if found < 2:
        raise SetupError(
            f"{format_bytes(max(budget, 0))} have no room for the recurrent state of a sequence, of "
            f"{format_bytes(each)}{', in two slots' if alone else ', and for its KV cache'}: raise --kv-cache-memory"
        )
    return found


def state_places(config: WorkerConfig, num_states: int) -> int:
    """Places for recurrent states: the slots, and one more for each row if there are drafts."""
    drafts = config.speculative is not None
    return num_states + drafts * with_rows(config, num_states).max_num_seqs


def with_rows(config: WorkerConfig, num_states: int) -> WorkerConfig:
    """The config with at most as many rows as have two state slots each."""
    if not 0 < num_states < 2 * config.max_num_seqs:
        return config
    return msgspec.structs.replace(config, max_num_seqs=num_states // 2)


def cache_line(config: WorkerConfig, sizes: Sizes) -> MemoryLine:
    what = f"{sizes.blocks} blocks of {config.block_size} tokens{of_groups(sizes.block_groups)}; taken as it fills"
    return MemoryLine("KV cache", sizes.blocks * sizes.block_bytes, what)


def first_tokens(
    config: WorkerConfig,
    vocab_size: int,
    sizes: Sizes,
    spans: Sequence[RowSpan] = (),
    encode: Sequence[EncodeJob] = (),
    inputs: Sequence[RowInput] = (),
) -> list[StepPlan]:
    """Plans that prefill a few tokens of a row and decode one.

    ``spans``: the row's media. ``encode``: encodings of the first step. ``inputs``: streamed input of the first step.
    """
    length = max(1, min(_FIRST_TOKENS, config.block_size - 1, sizes.max_model_len - 1))
    prompt = [token % vocab_size for token in range(length)]
    params = SamplingParams(max_tokens=2, temperature=0.0)
    row = NewRow(0, prompt, length, params, 0, [0] * max(1, len(sizes.block_groups)), spans=list(spans))
    step = RowStep(0, 0, length, [], True, state=0 if sizes.num_states else -1)
    first = StepPlan(0, 0, [], [row], [step], encode=list(encode), inputs=list(inputs))
    if length + 1 > sizes.max_model_len:
        return [first]
    return [first, StepPlan(0, 1, [], [], [RowStep(0, length, 1, [], True)])]


class Text(Family):
    """A decoder of text. On a device it runs one step ahead, and memory is measured differently
    (:mod:`..setup.device`)."""

    notes: Sequence[str] = ()
    """Notes for the operator."""

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        """``device``: ``cpu`` or ``cuda``."""
        self.checkpoint = checkpoint
        self.spec = checkpoint.own_decoder
        self.groups = self.spec.cache_groups
        self.limits = SUITED[device]
        self._device = device

    def longest(self, config: WorkerConfig) -> int:
        if config.return_routed_experts:
            expert_shape(self.spec)
        if self._device == "cuda":
            graph_sizes(config)
            if not 0.0 < config.gpu_memory_fraction <= 1.0:
                raise SetupError(
                    f"--gpu-memory-fraction {config.gpu_memory_fraction}: expected more than 0 and at most 1"
                )
        return longest_of(config, self.spec)

    def runs_ahead(self, config: WorkerConfig) -> bool:
        """Whether a device computes it one step ahead of the host."""
        return not (config.return_routed_experts or config.speculative is not None)

    def make(self, context: LayerContext, longest: int) -> TextModel:
        return Decoder(self.spec, context, max_model_len=longest)

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], TextModel],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        num_states = places = each = 0
        if self.spec.states:
            each = StateDTypes.of(config, model().context.dtype).nbytes(self.spec)
            alone = not self.groups
            num_states = fit_states(config, each, budget, alone=alone) if former is None else former.num_states
            places = state_places(config, num_states)
        sizes = size_cache(config, self.groups, longest, cache_dtype, budget - places * each, former)
        return replace(sizes, num_states=num_states, state_bytes=each)

    def extras(self, config: WorkerConfig, model: TextModel, sizes: Sizes) -> RowExtras | None:
        parts: list[RowExtras] = []
        if (adapters := self.adapter_rows(config, model)) is not None:
            parts.append(adapters)  # before states: these run mixers again for rows with drafts, with the same adapters
        if (media := self.media_rows(config, model)) is not None:
            parts.append(media)
        if (states := self.row_states(config, model.context, sizes)) is not None:
            parts.append(states)
        if config.return_routed_experts:
            parts.append(RoutedRows(expert_shape(self.spec)))
        return joined(parts)

    def adapter_rows(self, config: WorkerConfig, model: TextModel) -> AdapterRowsOf | None:
        """The rows' adapters; None if they are disabled."""
        places, device = model.context.adapters, model.context.device
        return None if places is None else AdapterRowsOf(AdapterStore(places, config.max_lora_rank, device))

    def media_rows(self, config: WorkerConfig, model: TextModel) -> MediaRows | None:
        """The rows' media; None if the model takes none."""
        return None

    def media_bytes(self, budget: int, longest: int, device_bytes: int) -> int:
        """Bytes for media out of the ``budget`` that a device has left for caches."""
        return 0

    def media_memory(self, sizes: Sizes) -> list[MemoryLine]:
        """The memory of media besides weights."""
        return []

    def row_states(self, config: WorkerConfig, context: LayerContext, sizes: Sizes) -> RowStates | None:
        """The rows' recurrent states; None if no layer has one. Raises :class:`..errors.SetupError` without memory."""
        if not self.spec.states:
            return None
        try:
            dtypes = StateDTypes.of(config, context.dtype)
            drafts = config.speculative is not None
            rows, at = config.max_num_seqs, context.device
            host = host_memory(sizes.host.states, sizes.host.state_bytes, at)
            return RowStates(self.spec.states, sizes.num_states, rows, dtypes, at, drafts=drafts, host=host)
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            raise SetupError(
                f"there is no room for {sizes.num_states} recurrent states: lower --max-num-seqs"
            ) from error

    def first_steps(self, config: WorkerConfig, model: TextModel, sizes: Sizes) -> list[StepPlan]:
        plans = first_tokens(config, self.spec.vocab_size, sizes)
        return [*plans, *as_adapted(plans)] if config.enable_lora else plans

    def memory(self, config: WorkerConfig, model: TextModel, sizes: Sizes) -> list[MemoryLine]:
        return [
            *self.state_memory(config, model, sizes),
            *([cache_line(config, sizes)] if self.groups else []),
            *self.media_memory(sizes),
            *adapter_lines(config, model.context.adapters),
        ]

    def state_memory(self, config: WorkerConfig, model: TextModel, sizes: Sizes) -> list[MemoryLine]:
        """The memory of recurrent states."""
        if not self.spec.states:
            return []
        each = StateDTypes.of(config, model.context.dtype).nbytes(self.spec)
        places = state_places(config, sizes.num_states)
        what = f"{places} of {each / 2**10:,.0f} KiB, for {config.max_num_seqs} rows and for prefixes"
        return [MemoryLine("recurrent states", places * each, what)]

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: TextModel, sizes: Sizes) -> WorkerReady:
        experts = expert_shape(self.spec) if config.return_routed_experts else None
        notes = [*self.notes, *ready.notes]
        groups = ready.groups
        if self.spec.states:
            groups = (*groups, CacheGroup("state", capacity=sizes.num_states))
        return msgspec.structs.replace(ready, notes=notes, groups=groups, experts=experts)
