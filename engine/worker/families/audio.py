"""Transcription models: what a worker that serves one needs."""

from collections.abc import Callable
from typing import Final

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.audio import MAX_WINDOW_BYTES
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.inputs import ArenaRef, StreamShape
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import EncodeJob, NewRow, RowInput, RowSpan, RowStep, StepPlan

from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...model_config.speech.encoder_decoder import ENCODER_BLOCK
from ...models.speech.encoder_decoder import EncoderDecoder
from ...models.speech.voxtral_realtime import VoxtralRealtime
from ..adapters.setup import adapter_lines, as_adapted
from ..adapters.store import AdapterStore
from ..caches import allocate_caches, block_groups_of, kv_block_bytes
from ..errors import SetupError
from ..limits import TRANSCRIPTION
from ..media.audio_streams import AudioStreams
from ..media.audio_windows import AudioWindows
from ..memory import format_bytes
from ..passes.adapter_rows import AdapterRowsOf
from ..rows.extras import JoinedExtras, RowExtras
from .family import Family, FormerSizes, Sizes, cache_line, first_tokens, size_cache
from .setup_parts import longest_of

_SILENCE: Final = ArenaRef(0, 0)
"""An empty window is transcribed as silence."""
_NO_SCALES: Final = "--kv-cache-dtype %s: transcription models have no scales for it; leave it out"


class Transcription(Family):
    """An encoder-decoder: memory is divided into encoder slots and blocks for as many transcripts."""

    no_room = "choose a smaller model"

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = checkpoint.encoder_decoder
        self.groups = self.spec.cache_groups
        self.limits = TRANSCRIPTION[device]

    def longest(self, config: WorkerConfig) -> int:
        spec = self.spec
        if spec.samples * 2 < MAX_WINDOW_BYTES:
            raise SetupError(f"the model takes windows of {spec.samples / 16_000:.1f} s, expected 30 s")
        if config.kv_cache_dtype in ("fp8", "int8"):
            raise SetupError(_NO_SCALES % config.kv_cache_dtype)
        if spec.aligns and config.max_num_batched_tokens < spec.max_position:
            raise SetupError(
                f"--max-num-batched-tokens {config.max_num_batched_tokens}: an alignment is computed in one step, of "
                f"up to {spec.max_position} tokens"
            )
        return longest_of(config, spec)

    def make(self, context: LayerContext, longest: int) -> EncoderDecoder:
        return EncoderDecoder(self.spec, context)

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], EncoderDecoder],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        """As many rows as requested or as fit, each with an encoder slot and blocks for the longest transcript."""
        block_bytes = kv_block_bytes(self.groups, config.block_size, cache_dtype)
        blocks = -(-longest // config.block_size)
        slot_bytes = self.spec.slot_blocks * kv_block_bytes([self.spec.cross_group], ENCODER_BLOCK, cache_dtype)
        each = slot_bytes + blocks * block_bytes
        rows = min(config.max_num_seqs, budget // each) if former is None else former.blocks // blocks
        if rows < 1:
            raise SetupError(
                f"{format_bytes(max(budget, 0))} have no room for one window of audio and its transcript, which need "
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
        jobs = [EncodeJob(slot, _SILENCE) for slot in range(windows)]
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
                f"there is no room for {sizes.encoder_slots} windows of encoded audio: lower --max-num-seqs"
            ) from error
        windows = AudioWindows(model, caches, config.max_num_seqs)
        if context.adapters is None:
            return windows
        store = AdapterStore(context.adapters, config.max_lora_rank, context.device)
        # adapters first: windows are encoded with the adapters in slots
        return JoinedExtras([AdapterRowsOf(store), windows])

    def first_steps(self, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> list[StepPlan]:
        job = EncodeJob(0, _SILENCE)
        plans = first_tokens(config, self.spec.vocab_size, sizes, encode=[job], spans=[self._span(0)])
        return [*plans, *as_adapted(plans)] if config.enable_lora else plans

    def memory(self, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> list[MemoryLine]:
        rows = sizes.encoder_slots
        windows = f"{rows} windows of {self.spec.samples // 16_000} s; taken as they fill"
        encoded = MemoryLine("encoded audio", rows * sizes.slot_bytes, windows)
        return [encoded, cache_line(config, sizes), *adapter_lines(config, model.context.adapters)]

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: EncoderDecoder, sizes: Sizes) -> WorkerReady:
        notes = list(ready.notes)
        if sizes.encoder_slots < config.max_num_seqs:
            notes.append(
                f"{sizes.encoder_slots} of {config.max_num_seqs} transcripts run at once, memory has room for no more; "
                "--kv-cache-memory gives them more"
            )
        positions = self.spec.source_positions
        windows = CacheGroup("cross", positions, sizes.encoder_slots * positions)
        return msgspec.structs.replace(ready, notes=notes, groups=(*ready.groups, windows))


class StreamedTranscription(Family):
    """Voxtral Realtime: memory is divided into tokens and the state of each stream."""

    packs = False
    no_room = "lower --max-prefill-chunk"

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = checkpoint.voxtral_realtime
        self.groups = self.spec.decoder.cache_groups
        self.limits = msgspec.structs.replace(TRANSCRIPTION[device], max_encodings=0, max_mixed_encodings=0)

    def longest(self, config: WorkerConfig) -> int:
        if config.kv_cache_dtype in ("fp8", "int8"):
            raise SetupError(_NO_SCALES % config.kv_cache_dtype)
        return longest_of(config, self.spec)

    def make(self, context: LayerContext, longest: int) -> VoxtralRealtime:
        return VoxtralRealtime(self.spec, context, max_model_len=longest)

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], VoxtralRealtime],
        longest: int,
        cache_dtype: torch.dtype,
        budget: int,
        former: FormerSizes | None = None,
    ) -> Sizes:
        streams = config.max_num_seqs * model().encoder.stream_bytes
        block_groups = block_groups_of(self.groups, longest)
        if budget - streams < kv_block_bytes(self.groups, config.block_size, cache_dtype, block_groups):
            raise SetupError(
                f"{config.max_num_seqs} streams keep {format_bytes(streams)} of their audio, and nothing is "
                "left for tokens: lower --max-num-seqs, or raise --kv-cache-memory"
            )
        return size_cache(config, self.groups, longest, cache_dtype, budget - streams, former)

    def largest_step(self, config: WorkerConfig, longest: int) -> tuple[StepPlan, Sizes]:
        count = min(config.max_prefill_chunk, longest)
        row = NewRow(0, [0] * count, count, SamplingParams(max_tokens=1, logprobs=0), 0, [])
        plan = StepPlan(0, 0, [], [row], [RowStep(0, 0, count, [], True)], inputs=[RowInput(0, [], ended=True)])
        return plan, Sizes(1, longest, 0)

    def extras(self, config: WorkerConfig, model: VoxtralRealtime, sizes: Sizes) -> AudioStreams:
        return AudioStreams(model)

    def first_steps(self, config: WorkerConfig, model: VoxtralRealtime, sizes: Sizes) -> list[StepPlan]:
        return first_tokens(config, self.spec.vocab_size, sizes, inputs=[RowInput(0, [], ended=True)])

    def memory(self, config: WorkerConfig, model: VoxtralRealtime, sizes: Sizes) -> list[MemoryLine]:
        streams = config.max_num_seqs * model.encoder.stream_bytes
        audio = f"audio of {config.max_num_seqs} of them, at most"
        return [cache_line(config, sizes), MemoryLine("streams", streams, audio)]

    def completed(self, ready: WorkerReady, config: WorkerConfig, model: VoxtralRealtime, sizes: Sizes) -> WorkerReady:
        return msgspec.structs.replace(ready, stream=StreamShape(self.spec.first, self.spec.step))
