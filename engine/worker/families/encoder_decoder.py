"""Encoder-decoders: what a worker that serves one needs, and those from text, or from a picture, to text."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.cache_groups import CacheGroup, InputKind
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowSpan, RowStep, StepPlan

from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...model_config.spec.seq2seq import ENCODER_BLOCK, Seq2SeqConfig
from ...models.encoder_decoder import EncoderDecoder
from ..adapters.setup import adapter_lines, as_adapted
from ..adapters.store import AdapterStore
from ..caches import allocate_caches, kv_block_bytes
from ..errors import SetupError
from ..limits import TEXT_TO_TEXT
from ..media.audio_windows import AudioWindows
from ..memory import format_bytes
from ..passes.adapter_rows import AdapterRowsOf
from ..rows.extras import JoinedExtras, RowExtras
from .family import Family, FormerSizes, Sizes, cache_line, first_tokens
from .setup_parts import longest_of

_EMPTY: Final = ArenaRef(0, 0)
"""An empty window is encoded as silence, an empty text as the longest, an empty picture as the largest."""


class EncoderDecoderFamily(Family):
    """Memory is divided into encoder slots and blocks for as many outputs."""

    no_room = "choose a smaller model"
    spec: Seq2SeqConfig
    inputs: str
    """What is encoded, in the plural."""
    outputs: str
    """What is written, in the plural."""
    one: str
    """One input with its output."""
    input_kind: InputKind = "audio"
    """What a window holds."""

    def make(self, context: LayerContext, longest: int) -> EncoderDecoder:
        return EncoderDecoder(self.spec, context)

    @abstractmethod
    def named(self, inputs: int) -> str:
        """So many inputs, of the greatest length."""

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], EncoderDecoder],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        """As many rows as requested or as fit, each with an encoder slot and blocks for the longest output."""
        block_bytes = kv_block_bytes(self.groups, config.block_size, cache_dtype)
        blocks = -(-longest // config.block_size)
        slot_bytes = self.spec.slot_blocks * kv_block_bytes([self.spec.cross_group], ENCODER_BLOCK, cache_dtype)
        each = slot_bytes + blocks * block_bytes
        rows = min(config.max_num_seqs, budget // each) if former is None else former.blocks // blocks
        if rows < 1:
            raise SetupError(
                f"{format_bytes(max(budget, 0))} have no room for one {self.one}, which need "
                f"{format_bytes(each)}: raise --kv-cache-memory, or choose a smaller model"
            )
        return Sizes(rows * blocks, longest, block_bytes, encoder_slots=rows, slot_bytes=slot_bytes)

    def largest_step(self, config: WorkerConfig, longest: int) -> tuple[StepPlan, Sizes]:
        """A step with the most tokens, whose rows share one block and all sample."""
        windows = self.limits.max_encodings
        count = min(config.max_num_seqs, config.max_num_batched_tokens)
        first = min(longest, config.max_num_batched_tokens - count + 1)
        params = SamplingParams(max_tokens=1, logprobs=0)
        lengths = [first, *(1 for _ in range(count - 1))]
        new = [
            NewRow(slot, [0] * length, length, params, 0, [], spans=[self._span(slot % windows)])
            for slot, length in enumerate(lengths)
        ]
        steps = [RowStep(slot, 0, n, [], True) for slot, n in enumerate(lengths)]
        jobs = [EncodeJob(slot, _EMPTY) for slot in range(windows)]
        return StepPlan(0, 0, [], new, steps, encode=jobs), Sizes(1, longest, 0, encoder_slots=windows)

    def _span(self, encoder_slot: int) -> RowSpan:
        return RowSpan(encoder_slot, -1, self.spec.source_positions)

    def extras(self, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> RowExtras:
        spec, context = self.spec, model.context
        blocks = sizes.encoder_slots * spec.slot_blocks
        try:
            caches = allocate_caches([spec.cross_group], blocks, ENCODER_BLOCK, context.device, context.dtype)
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            raise SetupError(
                f"there is no room for {sizes.encoder_slots} encoded {self.inputs}: lower --max-num-seqs"
            ) from error
        windows = AudioWindows(model, caches, config.max_num_seqs)
        if context.adapters is None:
            return windows
        store = AdapterStore(context.adapters, config.max_lora_rank, context.device)
        # adapters first: windows are encoded with the adapters in slots
        return JoinedExtras([AdapterRowsOf(store), windows])

    def first_steps(self, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> list[StepPlan]:
        job = EncodeJob(0, _EMPTY)
        plans = first_tokens(config, self.spec.vocab_size, sizes, encode=[job], spans=[self._span(0)])
        return [*plans, *as_adapted(plans)] if config.enable_lora else plans

    def memory(self, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> list[MemoryLine]:
        rows = sizes.encoder_slots
        what = f"{self.named(rows)}; taken as they fill"
        encoded = MemoryLine(f"encoded {self.inputs}", rows * sizes.slot_bytes, what)
        return [encoded, cache_line(config, sizes), *adapter_lines(config, model.context.adapters)]

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> WorkerReady:
        notes = list(ready.notes)
        if sizes.encoder_slots < config.max_num_seqs:
            notes.append(
                f"{sizes.encoder_slots} of {config.max_num_seqs} {self.outputs} run at once, memory has room for no "
                "more; --kv-cache-memory gives them more"
            )
        positions = self.spec.source_positions
        windows = CacheGroup("cross", positions, sizes.encoder_slots * positions, inputs=self.input_kind)
        return msgspec.structs.replace(ready, notes=notes, groups=(*ready.groups, windows))


class TextToText(EncoderDecoderFamily):
    """An encoder-decoder from text, or from a picture, to text. The context length bounds outputs, and by itself a text
    that is all of the input."""

    outputs = "sequences"

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = self._read = checkpoint.text_to_text
        self.groups = self.spec.cache_groups
        self.limits = TEXT_TO_TEXT[device]
        sees = self.spec.pictures is not None
        self.inputs, self.input_kind = ("pictures", "picture") if sees else ("texts", "tokens")
        self.one = f"{self.inputs[:-1]} and what is written about it"

    def named(self, inputs: int) -> str:
        if self._read.pictures is not None:
            return f"{inputs} pictures of {self.spec.source_positions} states"
        return f"{inputs} texts of {self.spec.source_positions} tokens"

    def longest(self, config: WorkerConfig) -> int:
        if config.kv_cache_dtype in ("fp8", "int8"):
            raise SetupError(
                f"--kv-cache-dtype {config.kv_cache_dtype}: encoder-decoders have no scales for it; leave it out"
            )
        if config.return_routed_experts:
            raise SetupError("--enable-return-routed-experts: encoder-decoders return none; leave it out")
        read = self._read
        bound = read if read.bounded else read.within(max(read.max_position, config.max_model_len or 0))
        longest = longest_of(config, bound)
        self.spec = read.within(longest)
        return longest
