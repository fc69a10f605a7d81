"""A worker of an encoder-decoder: memory goes to encoder slots and to the tokens of as many transcripts."""

from dataclasses import replace
from functools import partial

import msgspec
import torch

from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.audio import MAX_WINDOW_BYTES
from stentor.protocols.ipc.config import StepLimits, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import Encoding, NewRow, RowStep, StepPlan

from ..loading.checkpoint import Checkpoint
from ..model_config.whisper_config import WhisperConfig
from ..models.whisper import Whisper
from .cached_weights import open_cached
from .caches import allocate_caches, choose_cache_dtype, kv_block_bytes
from .device import Device
from .encoder_decoder_runner import EncoderDecoderRunner
from .errors import SetupError
from .limits import HEARING, limits_of, with_limits
from .memory import GIB, default_kv_bytes, resident_bytes
from .setup_parts import (
    ProgressCallback,
    Setup,
    choose_dtype,
    complete_a_step,
    dtype_name,
    layer_context,
    load_weights,
    prepare_kernels,
    wanted_length,
)

_CPU = torch.device("cpu")


def set_up_encoder_decoder(
    config: WorkerConfig,
    checkpoint: Checkpoint,
    progress: ProgressCallback,
    device: Device | None = None,
    weights_fd: int | None = None,
) -> Setup:
    """See :func:`.setup.set_up`; ``device`` is None on the host's own cores."""
    at = _CPU if device is None else device.torch_device
    suited = HEARING[at.type]
    config = with_limits(config, suited)
    model_config = checkpoint.whisper
    _check(config, model_config)
    dtype = choose_dtype(config.dtype, at, checkpoint.dtype, batch_invariant=config.batch_invariant)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, at)
    notes = prepare_kernels(config, progress) if device is None else []
    context = layer_context(checkpoint, config, at, dtype)
    packed = device is None and native.library() is not None and dtype in PLAIN
    context = replace(context, packed=packed)
    make = partial(Whisper, model_config)
    shapes = replace(context, shapes_only=True)
    kept = open_cached(checkpoint, config, context, weights_fd, lambda: make(shapes).weights.total_bytes)
    max_model_len = wanted_length(config, model_config)
    model = load_weights(make, Whisper.load, checkpoint, config, context, progress, kept)
    budget = _budget(config, model, device, suited, max_model_len, cache_dtype, progress)
    found = None if kept is None else kept.found
    sizes = size_caches(config, model, max_model_len, cache_dtype, budget, None if found is None else found.num_blocks)
    if kept is not None:
        kept.keep(max_model_len, sizes.blocks)
    runner = _runner(config, model, sizes.rows, sizes.blocks, at, max_model_len, cache_dtype)
    complete_a_step(
        runner,
        model_config.vocab_size,
        config.block_size,
        max_model_len,
        progress,
        encodings=[Encoding(0, bytes(MAX_WINDOW_BYTES))],
    )
    notes += model.weights.note_lines()
    if sizes.rows < config.max_num_seqs:
        notes.append(
            f"{sizes.rows} of {config.max_num_seqs} transcripts run at once, memory has room for no more; "
            "--kv-cache-memory gives them more"
        )
    windows = f"{sizes.rows} windows of {model_config.samples // 16_000} s; taken as they fill"
    tokens = f"{sizes.blocks} blocks of {config.block_size} tokens"
    memory = [
        MemoryLine(
            "weights", model.weights.total_bytes, f"{dtype_name(dtype)} on {at if device is None else device.name}"
        ),
        MemoryLine("encoded audio", sizes.rows * model.encoder_slot_bytes, windows),
        MemoryLine("KV cache", sizes.blocks * sizes.block_bytes, tokens),
    ]
    if device is None:
        memory.append(
            MemoryLine("worker process", resident_bytes(), "resident now: weights, code, audio touched so far")
        )
    limits = msgspec.structs.replace(
        limits_of(config), max_encodings=suited.max_encodings, max_mixed_encodings=suited.max_mixed_encodings
    )
    return Setup(runner, WorkerReady(sizes.blocks, max_model_len, memory, notes, limits, encoder_slots=sizes.rows))


class CacheSizes(msgspec.Struct, frozen=True):
    """What memory is cut into."""

    rows: int
    """Transcripts that run at once, each with an encoder slot for what it hears."""
    blocks: int
    """Of their tokens, all rows together."""
    block_bytes: int


def size_caches(
    config: WorkerConfig,
    model: Whisper,
    max_model_len: int,
    cache_dtype: torch.dtype,
    budget: int,
    settled: int | None = None,
) -> CacheSizes:
    """As many rows as were asked for, or as fit; each with an encoder slot and the blocks of the longest transcript.

    ``settled`` are the blocks of a worker that this one follows: its engine counts on them.
    """
    block_bytes = kv_block_bytes(model.config.cache_groups, config.block_size, cache_dtype)
    blocks = -(-max_model_len // config.block_size)
    each = model.encoder_slot_bytes + blocks * block_bytes
    rows = min(config.max_num_seqs, budget // each) if settled is None else settled // blocks
    if rows < 1:
        raise SetupError(
            f"{max(budget, 0) / GIB:.2f} GiB have no room for one window of audio and its transcript, which need "
            f"{each / GIB:.2f} GiB: raise --kv-cache-memory, or choose a smaller model"
        )
    return CacheSizes(rows, rows * blocks, block_bytes)


def _check(config: WorkerConfig, model: WhisperConfig) -> None:
    if model.samples * 2 < MAX_WINDOW_BYTES:
        raise SetupError(f"the model hears {model.samples / 16_000:.1f} s at once, and 30 s are needed")
    if config.kv_cache_dtype == "fp8":
        raise SetupError("--kv-cache-dtype fp8: models that hear have no scales for it; leave it out")
    if config.max_num_batched_tokens < model.max_position:
        raise SetupError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens}: an alignment is computed in one step, of up to "
            f"{model.max_position} tokens"
        )


def _budget(
    config: WorkerConfig,
    model: Whisper,
    device: Device | None,
    suited: StepLimits,
    max_model_len: int,
    cache_dtype: torch.dtype,
    progress: ProgressCallback,
) -> int:
    """Bytes for encoder slots and tokens. On a device a step of the largest kind runs, and what it took is left to
    it."""
    if device is None:
        return default_kv_bytes(0, config.memory_share) if config.kv_cache_memory is None else config.kv_cache_memory
    progress("measuring memory", 0, 1)
    windows = suited.max_encodings
    device.settle()
    device.forget_peak()
    before = device.memory()
    try:
        runner = _runner(config, model, windows, 1, device.torch_device, max_model_len, cache_dtype)
        runner.step(_largest(windows, config.max_num_batched_tokens, max_model_len, config.max_num_seqs))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"{device.name} has no room to encode {windows} windows of audio at once: choose a smaller model"
        ) from error
    peak = device.memory().peak
    del runner
    device.settle()
    progress("measuring memory", 1, 1)
    left = int(before.total * config.gpu_memory_fraction * config.memory_share) - before.reserved - before.outside
    return left - (peak - before.reserved) if config.kv_cache_memory is None else config.kv_cache_memory


def _largest(windows: int, tokens: int, max_model_len: int, slots: int) -> StepPlan:
    """Rows of as many tokens as a step may have, which all share one block, and every one draws."""
    count = min(slots, tokens)
    first = min(max_model_len, tokens - count + 1)
    params = SamplingParams(max_tokens=1, logprobs=0)
    lengths = [first, *(1 for _ in range(count - 1))]
    new = [NewRow(slot, [0] * n, n, params, 0, [], encoding=slot % windows) for slot, n in enumerate(lengths)]
    steps = [RowStep(slot, 0, n, [], True) for slot, n in enumerate(lengths)]
    encodings = [Encoding(slot, bytes(MAX_WINDOW_BYTES)) for slot in range(windows)]
    return StepPlan(0, 0, [], new, steps, encodings=encodings)


def _runner(
    config: WorkerConfig,
    model: Whisper,
    rows: int,
    blocks: int,
    at: torch.device,
    max_model_len: int,
    cache_dtype: torch.dtype,
) -> EncoderDecoderRunner:
    try:
        caches = allocate_caches(model.config.cache_groups, blocks, config.block_size, at, cache_dtype)
        cross_caches = model.make_cross_caches(rows)
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        raise SetupError(f"{at} has no room for {rows} windows of encoded audio: lower --max-num-seqs") from error
    return EncoderDecoderRunner(
        model,
        caches,
        cross_caches,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=at,
    )
