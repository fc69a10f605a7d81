"""A worker on an accelerator: what a step needs is measured, and the KV cache takes the rest."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.config import WorkerConfig

from ..layers.forward_batch import LayerCache
from ..loading.checkpoint import open_checkpoint
from ..model_config.model_spec import ModelSpec
from ..model_config.voxtral_realtime_config import VoxtralRealtimeConfig
from ..model_config.whisper_config import WhisperConfig
from ..models.decoder import Decoder
from .caches import (
    PageGroup,
    allocate_caches,
    cache_tensors,
    choose_cache_dtype,
    kv_block_bytes,
    of_groups,
    page_groups,
)
from .cores import granted_cores
from .device import Device
from .device_runner import DeviceRunner
from .errors import SetupError
from .graphs import default_sizes
from .limits import limits_of, with_limits
from .memory import GIB
from .profile import MemoryProfile, measure, run_plans, worst_steps
from .setup_encoder_decoder import set_up_encoder_decoder
from .setup_parts import (
    ProgressCallback,
    Setup,
    cache_note,
    choose_dtype,
    complete_a_step,
    cut_note,
    dtype_name,
    fit_length,
    layer_context,
    load_weights,
    wanted_length,
)
from .setup_pooling import set_up_pooling
from .setup_streaming import set_up_streaming
from .warmup import warm_up


def set_up_device(config: WorkerConfig, progress: ProgressCallback, device: Device) -> Setup:
    """See :func:`.setup.set_up`.

    The model is made for the longest context wanted, before the cache is sized; where the cache then holds less,
    a rotary stretch that depends on the length stays that of the longer one.
    """
    if config.is_pooling:
        return set_up_pooling(config, progress, device)
    checkpoint = open_checkpoint(Path(config.model), config.load_format)
    if isinstance(checkpoint.config, WhisperConfig):
        return set_up_encoder_decoder(config, checkpoint, progress, device)
    if isinstance(checkpoint.config, VoxtralRealtimeConfig):
        return set_up_streaming(config, checkpoint, progress, device)
    config = with_limits(config, "cuda")
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), granted_cores()))
    model_config = checkpoint.decoder
    dtype = choose_dtype(config.dtype, device.torch_device, checkpoint.dtype, batch_invariant=config.batch_invariant)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, device.torch_device)
    sizes = graph_sizes(config)
    if not 0.0 < config.gpu_memory_fraction <= 1.0:
        raise SetupError(f"--gpu-memory-fraction {config.gpu_memory_fraction}: expected more than 0 and at most 1")
    wanted = wanted_length(config, model_config)
    pages = page_groups(model_config.cache_groups, wanted)
    context = layer_context(checkpoint, config, device.torch_device, dtype)
    make = partial(Decoder, model_config, max_model_len=wanted)
    model = load_weights(make, Decoder.load, checkpoint, config, context, progress)
    profile = _profile(config, device, model, wanted, sizes, cache_dtype, pages, progress)
    max_model_len, num_blocks = size_cache(config, model_config, profile, wanted, cache_dtype, pages)
    caches = _allocate(config, model_config, device, num_blocks + 1, cache_dtype, pages)
    runner = _runner(config, model, caches, device, max_model_len, sizes)
    _take_memory(config, runner, device, max_model_len, model_config.vocab_size)
    complete_a_step(runner, model_config.vocab_size, config.block_size, max_model_len, progress, groups=len(pages))
    kv_bytes = sum(tensor.nbytes for tensor in cache_tensors(caches))
    memory = profile.lines(
        f"{dtype_name(dtype)} on {device.name}",
        kv_bytes,
        f"{num_blocks} blocks of {config.block_size} tokens in {dtype_name(cache_dtype)}{of_groups(pages)}",
        len(sizes),
    )
    windows = tuple(page.window for page in pages)
    notes = [*cut_note(max_model_len, wanted), *model.weights.note_lines(), *cache_note(checkpoint, cache_dtype)]
    return Setup(runner, WorkerReady(num_blocks, max_model_len, memory, notes, limits_of(config), windows=windows))


def _to_this_model(config: WorkerConfig) -> str:
    return "" if config.memory_share == 1.0 else f" to its share of {config.memory_share:g}"


def graph_sizes(config: WorkerConfig) -> list[int]:
    """Rows of the decode steps to capture, ascending; none where graphs are off."""
    if not config.cuda_graphs:
        return []
    if not config.cuda_graph_sizes:
        return default_sizes(config.max_num_seqs)
    wrong = [size for size in config.cuda_graph_sizes if not 1 <= size <= config.max_num_seqs]
    if wrong:
        raise SetupError(
            f"--cuda-graph-sizes {wrong[0]}: expected 1 to the {config.max_num_seqs} rows of --max-num-seqs"
        )
    return sorted(set(config.cuda_graph_sizes))


def size_cache(
    config: WorkerConfig,
    model: ModelSpec,
    profile: MemoryProfile,
    wanted: int,
    cache_dtype: torch.dtype,
    pages: Sequence[PageGroup] = (),
) -> tuple[int, int]:
    """Longest sequence and number of KV blocks that the scheduler may use; one more is nobody's."""
    block_bytes = kv_block_bytes(model.cache_groups, config.block_size, cache_dtype, pages)
    if config.kv_cache_memory is not None:
        budget = config.kv_cache_memory
        num_blocks = budget // block_bytes
        if budget > (room := profile.kv_budget(1.0) - block_bytes):
            raise SetupError(
                f"--kv-cache-memory: {budget / GIB:.2f} GiB do not fit, weights and a step leave "
                f"{max(room, 0) / GIB:.2f} GiB of the device: lower it, or leave it out"
            )
    else:
        budget = profile.kv_budget(config.gpu_memory_fraction * config.memory_share)
        num_blocks = budget // block_bytes - 1
    if budget < 0:
        raise SetupError(
            f"a step of this model needs {-budget / GIB:.2f} GiB more than --gpu-memory-fraction "
            f"{config.gpu_memory_fraction} of the device leaves{_to_this_model(config)}: raise it, lower "
            "--max-num-batched-tokens or --max-num-seqs, or choose a smaller model"
        )
    return fit_length(config, wanted, num_blocks, block_bytes, budget, pages), num_blocks


def _profile(
    config: WorkerConfig,
    device: Device,
    model: Decoder,
    max_model_len: int,
    sizes: list[int],
    cache_dtype: torch.dtype,
    pages: Sequence[PageGroup],
    progress: ProgressCallback,
) -> MemoryProfile:
    slots, tokens, vocab_size = config.max_num_seqs, config.max_num_batched_tokens, model.config.vocab_size
    try:
        caches = allocate_caches(
            model.config.cache_groups, 1, config.block_size, device.torch_device, cache_dtype, pages
        )
        runner = _runner(config, model, caches, device, max_model_len, sizes)
        progress("measuring memory", 0, 1)
        plans = worst_steps(slots, tokens, max_model_len, vocab_size)
        warm = partial(warm_up, runner, slots, tokens, max_model_len, vocab_size, progress)
        profile = measure(device, runner, plans, warm, slots, len(sizes))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"{device.name} has no room for a step of {tokens} tokens and {slots} rows: lower "
            "--max-num-batched-tokens or --max-num-seqs"
        ) from error
    del runner, caches
    device.settle()
    progress("measuring memory", 1, 1)
    return profile


def _take_memory(
    config: WorkerConfig, runner: DeviceRunner, device: Device, max_model_len: int, vocab_size: int
) -> None:
    """Runs the largest step first, as it was measured: what it leaves is cut up for smaller ones, and not enlarged."""
    try:
        run_plans(runner, worst_steps(config.max_num_seqs, config.max_num_batched_tokens, max_model_len, vocab_size))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"{device.name} has no room for a step beside the KV cache: lower --kv-cache-memory or "
            "--gpu-memory-fraction"
        ) from error


def _allocate(
    config: WorkerConfig,
    model: ModelSpec,
    device: Device,
    num_blocks: int,
    cache_dtype: torch.dtype,
    pages: Sequence[PageGroup],
) -> list[LayerCache]:
    groups = model.cache_groups
    try:
        return allocate_caches(groups, num_blocks, config.block_size, device.torch_device, cache_dtype, pages)
    except torch.OutOfMemoryError as error:
        size = num_blocks * kv_block_bytes(groups, config.block_size, cache_dtype, pages)
        raise SetupError(
            f"{device.name} has no room for {size / GIB:.2f} GiB of KV cache: lower --kv-cache-memory or "
            "--gpu-memory-fraction"
        ) from error


def _runner(
    config: WorkerConfig,
    model: Decoder,
    caches: list[LayerCache],
    device: Device,
    max_model_len: int,
    sizes: list[int],
) -> DeviceRunner:
    return DeviceRunner(
        model,
        caches,
        device,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        graph_sizes=sizes,
        graph_stall=config.cuda_graph_stall,
    )
