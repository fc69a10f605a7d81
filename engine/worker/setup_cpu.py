"""A worker on the host's own cores."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.config import WorkerConfig

from ..layers.layer_context import LayerContext
from ..loading.checkpoint import open_checkpoint
from ..model_config.model_spec import ModelSpec
from ..model_config.voxtral_realtime_config import VoxtralRealtimeConfig
from ..model_config.whisper_config import WhisperConfig
from ..models.decoder import Decoder
from .cached_weights import open_cached
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
from .errors import SetupError
from .limits import limits_of, with_limits
from .memory import GIB, default_kv_bytes, resident_bytes
from .prefault import Prefault
from .runner import ModelRunner
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

_CPU = torch.device("cpu")


def set_up_cpu(config: WorkerConfig, progress: ProgressCallback, weights_fd: int | None = None) -> Setup:
    """See :func:`.setup.set_up`."""
    if config.is_pooling:
        return set_up_pooling(config, progress, weights_fd=weights_fd)
    checkpoint = open_checkpoint(Path(config.model), config.load_format)
    if isinstance(checkpoint.config, WhisperConfig):
        return set_up_encoder_decoder(config, checkpoint, progress, weights_fd=weights_fd)
    if isinstance(checkpoint.config, VoxtralRealtimeConfig):
        return set_up_streaming(config, checkpoint, progress)
    config = with_limits(config, "cpu")
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), granted_cores()))
    model_config = checkpoint.decoder
    dtype = choose_dtype(config.dtype, _CPU, checkpoint.dtype, batch_invariant=config.batch_invariant)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, _CPU)
    native.prepare(progress=lambda done, total: progress("compiling CPU kernels", done, total))
    notes = []
    if (reason := native.unavailable_reason()) is not None:
        notes.append(f"CPU kernels run in plain torch, several times slower: {reason}")
    context = layer_context(checkpoint, config, _CPU, dtype)
    context = replace(context, packed=native.library() is not None and dtype in PLAIN)
    kept = open_cached(checkpoint, config, context, weights_fd, lambda: weights_bytes(checkpoint.decoder, context))
    groups = model_config.cache_groups
    pages = page_groups(groups, wanted_length(config, model_config))
    if kept is not None and kept.found is not None:  # what it settled is what its engine counts on
        max_model_len, num_blocks = kept.found.max_model_len, kept.found.num_blocks
    else:
        max_model_len, num_blocks = size_cache(config, model_config, context, cache_dtype, pages)
    notes += cut_note(max_model_len, config.max_model_len or model_config.max_position)
    kv_bytes = num_blocks * kv_block_bytes(groups, config.block_size, cache_dtype, pages)
    make = partial(Decoder, model_config, max_model_len=max_model_len)
    model = load_weights(make, Decoder.load, checkpoint, config, context, progress, kept)
    if kept is not None:
        kept.keep(max_model_len, num_blocks)
    try:
        caches = allocate_caches(groups, num_blocks, config.block_size, _CPU, cache_dtype, pages)
    except (OSError, MemoryError) as error:
        raise SetupError(
            f"{_CPU} has no room for {kv_bytes / GIB:.2f} GiB of KV cache: lower --kv-cache-memory"
        ) from error
    runner = ModelRunner(
        model,
        caches,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=_CPU,
    )
    complete_a_step(runner, model_config.vocab_size, config.block_size, max_model_len, progress, groups=len(pages))
    notes += [*model.weights.note_lines(), *cache_note(checkpoint, cache_dtype), *call_notes(runner.calls)]
    blocks = f"{num_blocks} blocks of {config.block_size} tokens{of_groups(pages)}"
    memory = [
        MemoryLine("weights", model.weights.total_bytes, f"{dtype_name(dtype)} on {_CPU}"),
        MemoryLine("KV cache", kv_bytes, f"{blocks}; taken as it fills"),
        MemoryLine("worker process", resident_bytes(), "resident now: weights, code, KV blocks touched so far"),
    ]
    windows = tuple(page.window for page in pages)
    ready = WorkerReady(num_blocks, max_model_len, memory, notes, limits_of(config), windows=windows)
    return Setup(runner, ready, Prefault(cache_tensors(caches)))


def call_notes(calls: Sequence[str]) -> list[str]:
    """Where the pass leaves its program for an operation that has no instruction."""
    return [
        f"the pass leaves its program {count} times a step, slower, for {what}"
        for what, count in Counter(calls).most_common()
    ]


def size_cache(
    config: WorkerConfig,
    model: ModelSpec,
    context: LayerContext,
    cache_dtype: torch.dtype,
    pages: Sequence[PageGroup] = (),
) -> tuple[int, int]:
    """Longest sequence and number of KV blocks.

    A context that the operator named must fit; the model's own is cut to what fits.
    """
    wanted = wanted_length(config, model)
    block_bytes = kv_block_bytes(model.cache_groups, config.block_size, cache_dtype, pages)
    budget = config.kv_cache_memory
    if budget is None:
        budget = default_kv_bytes(weights_bytes(model, context), config.memory_share)
    num_blocks = budget // block_bytes
    return fit_length(config, wanted, num_blocks, block_bytes, budget, pages), num_blocks


def weights_bytes(model: ModelSpec, context: LayerContext) -> int:
    """What the model's tensors will take, without making them."""
    return Decoder(model, replace(context, shapes_only=True), max_model_len=1).weights.total_bytes
