"""A worker of a streaming transcription model: memory goes to tokens, and to what each stream keeps."""

from collections.abc import Sequence
from functools import partial

import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.audio import StreamShape
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowInput, RowStep, StepPlan

from ..loading.checkpoint import Checkpoint
from ..models.voxtral_realtime import VoxtralRealtime
from .caches import PageGroup, allocate_caches, choose_cache_dtype, kv_block_bytes, of_groups, page_groups
from .device import Device
from .errors import SetupError
from .limits import HEARING, limits_of, with_limits
from .memory import GIB, default_kv_bytes, resident_bytes
from .setup_parts import (
    ProgressCallback,
    Setup,
    choose_dtype,
    complete_a_step,
    cut_note,
    dtype_name,
    fit_length,
    layer_context,
    load_weights,
    prepare_kernels,
    wanted_length,
)
from .streaming_runner import StreamingRunner

_CPU = torch.device("cpu")


def set_up_streaming(
    config: WorkerConfig, checkpoint: Checkpoint, progress: ProgressCallback, device: Device | None = None
) -> Setup:
    """See :func:`.setup.set_up`; ``device`` is None on the host's own cores."""
    at = _CPU if device is None else device.torch_device
    config = with_limits(config, HEARING[at.type])
    model_config = checkpoint.voxtral_realtime
    if config.kv_cache_dtype == "fp8":
        raise SetupError("--kv-cache-dtype fp8: models that hear have no scales for it; leave it out")
    dtype = choose_dtype(config.dtype, at, checkpoint.dtype, batch_invariant=config.batch_invariant)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, at)
    notes = prepare_kernels(config, progress) if device is None else []
    wanted = wanted_length(config, model_config)
    context = layer_context(checkpoint, config, at, dtype)
    make = partial(VoxtralRealtime, model_config, max_model_len=wanted)
    model = load_weights(make, VoxtralRealtime.load, checkpoint, config, context, progress)
    streams = config.max_num_seqs * model.encoder.stream_bytes
    pages = page_groups(model_config.decoder.cache_groups, wanted)
    block_bytes = kv_block_bytes(model_config.decoder.cache_groups, config.block_size, cache_dtype, pages)
    budget = _budget(config, model, device, wanted, cache_dtype, progress) - streams
    if budget < block_bytes:
        raise SetupError(
            f"{config.max_num_seqs} streams keep {streams / GIB:.2f} GiB of what they have heard, and nothing is left "
            "for tokens: lower --max-num-seqs, or raise --kv-cache-memory"
        )
    num_blocks = budget // block_bytes
    max_model_len = fit_length(config, wanted, num_blocks, block_bytes, budget, pages)
    runner = _runner(config, model, num_blocks, at, max_model_len, cache_dtype, pages)
    complete_a_step(
        runner,
        model_config.vocab_size,
        config.block_size,
        max_model_len,
        progress,
        inputs=[RowInput(0, b"", ended=True)],
        groups=len(pages),
    )
    name = str(at) if device is None else device.name
    memory = [
        MemoryLine("weights", model.weights.total_bytes, f"{dtype_name(dtype)} on {name}"),
        MemoryLine(
            "KV cache", num_blocks * block_bytes, f"{num_blocks} blocks of {config.block_size} tokens{of_groups(pages)}"
        ),
        MemoryLine("streams", streams, f"what {config.max_num_seqs} of them have heard, at most"),
    ]
    if device is None:
        memory.append(MemoryLine("worker process", resident_bytes(), "resident now: weights, code, KV blocks touched"))
    notes += [*cut_note(max_model_len, wanted), *model.weights.note_lines()]
    shape = StreamShape(model_config.first, model_config.step)
    windows = tuple(page.window for page in pages)
    ready = WorkerReady(num_blocks, max_model_len, memory, notes, limits_of(config), stream=shape, windows=windows)
    return Setup(runner, ready)


def _budget(
    config: WorkerConfig,
    model: VoxtralRealtime,
    device: Device | None,
    max_model_len: int,
    cache_dtype: torch.dtype,
    progress: ProgressCallback,
) -> int:
    """Bytes for streams and tokens. On a device a step of the largest kind runs, and what it took is left to it."""
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    if device is None:
        return default_kv_bytes(0, config.memory_share)
    progress("measuring memory", 0, 1)
    device.settle()
    device.forget_peak()
    before = device.memory()
    count = min(config.max_prefill_chunk, max_model_len)
    try:
        runner = _runner(config, model, 1, device.torch_device, max_model_len, cache_dtype, ())
        row = NewRow(0, [0] * count, count, SamplingParams(max_tokens=1, logprobs=0), 0, [])
        runner.step(StepPlan(0, 0, [], [row], [RowStep(0, 0, count, [], True)], inputs=[RowInput(0, b"", ended=True)]))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"{device.name} has no room for a step of {count} tokens: lower --max-prefill-chunk"
        ) from error
    peak = device.memory().peak
    del runner
    device.settle()
    progress("measuring memory", 1, 1)
    left = int(before.total * config.gpu_memory_fraction * config.memory_share) - before.reserved - before.outside
    return left - (peak - before.reserved)


def _runner(
    config: WorkerConfig,
    model: VoxtralRealtime,
    blocks: int,
    at: torch.device,
    max_model_len: int,
    cache_dtype: torch.dtype,
    pages: Sequence[PageGroup],
) -> StreamingRunner:
    groups = model.config.decoder.cache_groups
    try:
        caches = allocate_caches(groups, blocks, config.block_size, at, cache_dtype, pages)
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        raise SetupError(f"{at} has no room for {blocks} KV blocks: lower --kv-cache-memory") from error
    return StreamingRunner(
        model,
        caches,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=at,
    )
