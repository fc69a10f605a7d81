"""Default limits of a step by device. No torch."""

import msgspec

from stentor.protocols.ipc.config import StepLimits, WorkerConfig

SUITED = {
    # A CPU is busy with few rows, a chunk of prefill delays decoding rows, and up to a block of a known prompt is
    # computed again. So long prompts come in pieces. Of many short prompts, as many begin at once as fill a piece:
    # products are no slower, and these need not wait for the first tokens of all.
    "cpu": StepLimits(
        block_size=16,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        max_mixed_prefill_tokens=512,
        max_prefill_chunk=512,
        max_admitted_tokens=512,
    ),
    # a GPU reads a block at once, and products need a thousand tokens to be worth reading the weights
    "cuda": StepLimits(
        block_size=64,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_mixed_prefill_tokens=2048,
        max_prefill_chunk=2048,
    ),
}

ENCODINGS = {"cpu": (4, 1), "cuda": (16, 4)}
"""Media that a step encodes for a decoder: in all, and beside decoding rows, which wait for it."""

TRANSCRIPTION = {
    # An encoding delays decoding rows more than anything else. A decoding row reads as many bytes of its audio's cache
    # as the model has weights, so more rows at once gain little.
    "cpu": StepLimits(
        block_size=16,
        max_num_seqs=16,
        max_num_batched_tokens=1024,
        max_mixed_prefill_tokens=448,
        max_prefill_chunk=448,
        max_encodings=4,
        max_mixed_encodings=1,
    ),
    "cuda": StepLimits(
        block_size=64,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        max_mixed_prefill_tokens=2048,
        max_prefill_chunk=448,
        max_encodings=16,
        max_mixed_encodings=8,
    ),
}
"""For encoder-decoders that transcribe."""

TEXT_TO_TEXT = {
    # a row keeps the keys and values of its whole input, so that rows are bounded by memory before anything else
    "cpu": msgspec.structs.replace(TRANSCRIPTION["cpu"], max_num_seqs=64, max_encodings=8, max_mixed_encodings=4),
    "cuda": msgspec.structs.replace(TRANSCRIPTION["cuda"], max_num_seqs=256),
}
"""For encoder-decoders from text to text."""

POOLING = {
    # such a step takes about 25 ms for a small model, for which a short text waits; a longer one gains nothing
    "cpu": StepLimits(
        block_size=16,
        max_num_seqs=256,
        max_num_batched_tokens=512,
        max_mixed_prefill_tokens=512,
        max_prefill_chunk=512,
    ),
    "cuda": StepLimits(
        block_size=64,
        max_num_seqs=1024,
        max_num_batched_tokens=16384,
        max_mixed_prefill_tokens=8192,
        max_prefill_chunk=16384,
    ),
}
"""For pooling models."""

_NAMED = frozenset(WorkerConfig.__struct_fields__)
"""Limits that an operator may set are among these."""


def with_limits(config: WorkerConfig, suited: str | StepLimits) -> WorkerConfig:
    """The config with every unset limit replaced by the default of ``cpu``, ``cuda``, or the given limits."""
    defaults = msgspec.structs.asdict(SUITED[suited] if isinstance(suited, str) else suited)
    return msgspec.structs.replace(
        config, **{name: getattr(config, name) or default for name, default in defaults.items() if name in _NAMED}
    )


def limits_of(config: WorkerConfig) -> StepLimits:
    """The limits of a config that has them all."""
    return StepLimits(
        config.block_size,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.max_mixed_prefill_tokens,
        config.max_prefill_chunk,
        max_drafts=0 if config.speculative is None else config.speculative.num_speculative_tokens,
    )
