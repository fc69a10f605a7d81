"""What a step may hold, where the operator did not say: what suits the device. Torch-free."""

import msgspec

from stentor.protocols.ipc.config import StepLimits, WorkerConfig

SUITED = {
    # a CPU is busy with few rows, a chunk of prefill holds up those that decode, and of a prompt that is known up to a
    # block's length is computed again; so a long prompt comes in pieces. Of a crowd of short ones as many begin at once
    # as fill a piece: products are no slower, and these need not wait for the first tokens of all
    "cpu": StepLimits(
        block_size=16,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        max_mixed_prefill_tokens=96,
        max_prefill_chunk=512,
        max_admitted_tokens=512,
    ),
    # a GPU reads a block at once, and needs a thousand tokens before products are worth the weights they read
    "cuda": StepLimits(
        block_size=64,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_mixed_prefill_tokens=2048,
        max_prefill_chunk=2048,
    ),
}

ENCODINGS = {"cpu": (4, 1), "cuda": (16, 4)}
"""Pieces of media that a step encodes for a decoder, in all and beside rows that decode, which wait for it."""

TRANSCRIPTION = {
    # an encoding holds up who decodes for longer than all else; and who decodes reads as much for its audio as the
    # model's weights are large, so that more rows at once gain little
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
"""For encoder-decoders."""

POOLING = {
    # of a small model such a step takes some 25 ms, which a short text waits for; a longer one gains nothing by it
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
"""For models that make vectors and scores."""

_NAMED = frozenset(WorkerConfig.__struct_fields__)
"""Limits that an operator may name are among these."""


def with_limits(config: WorkerConfig, suited: str | StepLimits) -> WorkerConfig:
    """The same with every limit named: as suits a device of type ``cpu`` or ``cuda``, or as given."""
    defaults = msgspec.structs.asdict(SUITED[suited] if isinstance(suited, str) else suited)
    return msgspec.structs.replace(
        config, **{name: getattr(config, name) or default for name, default in defaults.items() if name in _NAMED}
    )


def limits_of(config: WorkerConfig) -> StepLimits:
    """Those that a config names."""
    return StepLimits(
        config.block_size,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.max_mixed_prefill_tokens,
        config.max_prefill_chunk,
        max_drafts=0 if config.speculative is None else config.speculative.num_speculative_tokens,
    )
