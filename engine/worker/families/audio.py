"""Transcription models: what a worker that serves one needs."""

from collections.abc import Callable
from typing import Final

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.audio import MAX_WINDOW_BYTES
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowInput, RowStep, StepPlan

from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...model_config.speech.encoder_decoder import EncoderDecoderConfig
from ...models.speech.streamed import StreamedTranscriber
from ..caches import block_groups_of, kv_block_bytes
from ..errors import SetupError
from ..limits import TRANSCRIPTION
from ..media.audio_streams import AudioStreams
from ..memory import format_bytes
from .encoder_decoder import EncoderDecoderFamily
from .family import Family, FormerSizes, Sizes, cache_line, first_tokens, size_cache
from .setup_parts import longest_of

_NO_SCALES: Final = "--kv-cache-dtype %s: transcription models have no scales for it; leave it out"


class Transcription(EncoderDecoderFamily):
    """An encoder-decoder from windows of audio to transcripts."""

    inputs, outputs = "audio", "transcripts"
    one = "window of audio and its transcript"
    spec: EncoderDecoderConfig

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = checkpoint.encoder_decoder
        self.groups = self.spec.cache_groups
        self.limits = TRANSCRIPTION[device]

    def named(self, inputs: int) -> str:
        return f"{inputs} windows of {self.spec.samples // 16_000} s"

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


class StreamedTranscription(Family):
    """A streaming model: memory is divided into tokens and the state of each stream."""

    packs = False
    no_room = "lower --max-prefill-chunk"

    def __init__(self, checkpoint: Checkpoint, device: str) -> None:
        self.checkpoint = checkpoint
        self.spec = checkpoint.streamed
        self.groups = self.spec.decoder.cache_groups
        self.limits = msgspec.structs.replace(TRANSCRIPTION[device], max_encodings=0, max_mixed_encodings=0)

    def longest(self, config: WorkerConfig) -> int:
        if config.kv_cache_dtype in ("fp8", "int8"):
            raise SetupError(_NO_SCALES % config.kv_cache_dtype)
        return longest_of(config, self.spec)

    def make(self, context: LayerContext, longest: int) -> StreamedTranscriber:
        return StreamedTranscriber(self.spec, context, max_model_len=longest)

    def size(
        self,
        config: WorkerConfig,
        model: Callable[[], StreamedTranscriber],
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

    def extras(self, config: WorkerConfig, model: StreamedTranscriber, sizes: Sizes) -> AudioStreams:
        return AudioStreams(model)

    def first_steps(self, config: WorkerConfig, model: StreamedTranscriber, sizes: Sizes) -> list[StepPlan]:
        return first_tokens(config, self.spec.vocab_size, sizes, inputs=[RowInput(0, [], ended=True)])

    def memory(self, config: WorkerConfig, model: StreamedTranscriber, sizes: Sizes) -> list[MemoryLine]:
        streams = config.max_num_seqs * model.encoder.stream_bytes
        audio = f"audio of {config.max_num_seqs} of them, at most"
        return [cache_line(config, sizes), MemoryLine("streams", streams, audio)]

    def completed(
        self, ready: WorkerReady, config: WorkerConfig, model: StreamedTranscriber, sizes: Sizes
    ) -> WorkerReady:
        return msgspec.structs.replace(ready, stream=StreamShape(self.spec.first, self.spec.step))
