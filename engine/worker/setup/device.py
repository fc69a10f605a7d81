"""Sets up a text model that runs one step ahead on a device: measures a step, and gives the rest to the KV cache."""

from collections.abc import Sequence
from functools import partial

import torch
from msgspec.structs import replace

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPlan

from ...layers.forward_batch import LayerCache
from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.model import ModelSpec
from ...models.decoder import Decoder
from ..adapters.setup import adapter_bytes, adapter_lines, as_adapted
from ..caches import BlockGroup, allocate_caches, block_groups_of, cache_tensors, host_memory, kv_block_bytes, of_groups
from ..compute.async_compute import AsyncCompute, AsyncRunner, TextExtras
from ..compute.runner import ModelRunner
from ..device.device import Device
from ..device.graphs import GraphCapture, GraphSize, graph_sizes, within_rows
from ..errors import SetupError
from ..families.family import Sizes, Text, agreed, fit_states, named_blocks, with_rows
from ..families.host_tier import with_host
from ..families.setup_parts import dtype_name, fit_length
from ..media.rows import MediaRows
from ..memory import format_bytes
from ..rows.extras import joined
from ..rows.rows import RowLimits
from ..rows.states import StateDTypes
from .choices import SetupChoices
from .profile import MemoryProfile, measure, run_plans, worst_steps
from .warmup import warm_up


def run_ahead(
    family: Text, chosen: SetupChoices, model: Decoder, device: Device
) -> tuple[AsyncRunner, AsyncCompute, Sizes, list[MemoryLine]]:
    """The runner of ``model``, which was made for the longest wanted context, and the use of the device's memory."""
    config, wanted, cache_dtype = chosen.config, chosen.wanted, chosen.cache_dtype
    spec, dtype, graphs = family.spec, model.context.dtype, graph_sizes(config)
    block_groups = block_groups_of(family.groups, wanted)
    media = family.media_rows(config, model)
    profile = _profile(family, chosen, model, device, graphs, block_groups, media)
    budget = profile.kv_budget(config.gpu_memory_fraction * config.memory_share)
    places = model.context.adapters
    beside = family.media_bytes(budget, wanted, profile.total) + adapter_bytes(config, places)
    state_bytes = StateDTypes.of(config, dtype).nbytes(spec)
    sizes = size_cache(config, spec, profile, wanted, cache_dtype, block_groups, state_bytes, beside)
    sizes = with_host(config, agreed(sizes, model.context.ranks))
    config = with_rows(config, sizes.num_states)
    graphs = within_rows(graphs, config.max_num_seqs)
    caches = _allocate(config, spec, device, sizes.blocks + 1, cache_dtype, block_groups)
    runner, compute = _runner(config, family, model, caches, device, sizes, graphs, media)
    _take_memory(config, runner, device, sizes.max_model_len, spec.vocab_size)
    blocks = (
        f"{sizes.blocks} blocks of {config.block_size} tokens in {dtype_name(cache_dtype)}{of_groups(block_groups)}"
    )
    cache = MemoryLine("KV cache", sum(tensor.nbytes for tensor in cache_tensors(caches)), blocks)
    kept = [
        *family.state_memory(config, model, sizes),
        *([cache] if caches else []),
        *family.media_memory(sizes),
        *adapter_lines(config, places),
    ]
    if places is not None:
        profile = replace(profile, loaded=profile.loaded - places.table_bytes)
    memory = profile.lines(f"{dtype_name(dtype)} on {device.name}", kept, len(graphs))
    return runner, compute, sizes, memory


def attention_notes(
    config: WorkerConfig, spec: ModelSpec, dtype: torch.dtype, cache_dtype: torch.dtype, place: torch.device
) -> list[str]:
    """Which attention kernel runs prompts that begin with their step, by kind of layer, and why; for a GPU."""
    if place.type != "cuda":
        return []
    from stentor.kernels.attention.whole_prompt import choose_whole_prompt  # late: importing Triton takes half a second

    notes = {}
    for mixer in dict.fromkeys(layer.mixer for layer in spec.layers):
        if isinstance(mixer, AttentionSpec):
            chosen = choose_whole_prompt(
                *(place, dtype, cache_dtype, mixer.head_dim, mixer.heads // mixer.kv_heads, config.block_size),
                window=mixer.window,
                softcap=mixer.softcap,
                sinks=mixer.sinks,
                invariant=config.batch_invariant,
            )
            notes[chosen.describe("whole prompts")] = True
    return list(notes)


def _to_this_model(config: WorkerConfig) -> str:
    return "" if config.memory_share == 1.0 else f" to its share of {config.memory_share:g}"


def size_cache(
    config: WorkerConfig,
    model: ModelSpec,
    profile: MemoryProfile,
    wanted: int,
    cache_dtype: torch.dtype,
    block_groups: tuple[BlockGroup, ...] = (),
    state_bytes: int = 0,
    beside: int = 0,
) -> Sizes:
    """The blocks of the scheduler; one more is the null block.

    ``state_bytes``: of a recurrent state. ``beside``: bytes of media and adapters on the device.
    """
    block_bytes = kv_block_bytes(model.cache_groups, config.block_size, cache_dtype, block_groups)
    if config.kv_cache_memory is not None:
        budget = config.kv_cache_memory
        if budget > (room := profile.kv_budget(1.0) - block_bytes - beside):
            raise SetupError(
                f"--kv-cache-memory: {format_bytes(budget)} do not fit, weights and a step leave "
                f"{format_bytes(max(room, 0))} of the device: lower it, or leave it out"
            )
    else:
        budget = profile.kv_budget(config.gpu_memory_fraction * config.memory_share) - beside
    if budget < 0:
        raise SetupError(
            f"a step of this model needs {format_bytes(-budget)} more than --gpu-memory-fraction "
            f"{config.gpu_memory_fraction} of the device leaves{_to_this_model(config)}: raise it, lower "
            "--max-num-batched-tokens or --max-num-seqs, or choose a smaller model"
        )
    alone = not model.cache_groups
    num_states = fit_states(config, state_bytes, budget, alone=alone) if state_bytes else 0
    if alone:
        return Sizes(named_blocks(config, wanted), wanted, 0, num_states=num_states, state_bytes=state_bytes)
    budget -= num_states * state_bytes
    num_blocks = budget // block_bytes - (config.kv_cache_memory is None)
    length = fit_length(config, wanted, num_blocks, block_bytes, budget, block_groups)
    return Sizes(num_blocks, length, block_bytes, block_groups, num_states=num_states, state_bytes=state_bytes)


def _profile(
    family: Text,
    chosen: SetupChoices,
    model: Decoder,
    device: Device,
    graphs: list[GraphSize],
    block_groups: tuple[BlockGroup, ...],
    media: MediaRows | None,
) -> MemoryProfile:
    """Measure the largest steps on one block of cache. Raises :class:`SetupError` if the device has no room."""
    config, max_model_len, progress = chosen.config, chosen.wanted, chosen.progress
    slots, tokens, vocab_size = config.max_num_seqs, config.max_num_batched_tokens, model.config.vocab_size
    try:
        caches = allocate_caches(
            model.config.cache_groups, 1, config.block_size, device.torch_device, chosen.cache_dtype, block_groups
        )
        least = Sizes(1, max_model_len, 0, block_groups, num_states=1)
        runner, compute = _runner(config, family, model, caches, device, least, graphs, media)
        progress("measuring memory", 0, 1)
        plans = _worst_steps(config, max_model_len, vocab_size)
        warm = partial(
            warm_up,
            *(runner, compute, slots, tokens, max_model_len, vocab_size, progress),
            adapted=config.enable_lora,
        )
        profile = measure(device, runner, compute, plans, warm, slots, graphs)
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"{device.name} has no room for a step of {tokens} tokens and {slots} rows: lower "
            "--max-num-batched-tokens or --max-num-seqs"
        ) from error
    del runner, compute, caches
    device.settle()
    progress("measuring memory", 1, 1)
    return profile


def _take_memory(
    config: WorkerConfig, runner: AsyncRunner, device: Device, max_model_len: int, vocab_size: int
) -> None:
    """Run the largest step first, as it was measured: its memory is divided for smaller ones, but cannot be
    extended."""
    try:
        run_plans(runner, _worst_steps(config, max_model_len, vocab_size))
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"{device.name} has no room for a step beside the KV cache: lower --kv-cache-memory or "
            "--gpu-memory-fraction"
        ) from error


def _worst_steps(config: WorkerConfig, max_model_len: int, vocab_size: int) -> list[StepPlan]:
    plans = worst_steps(config.max_num_seqs, config.max_num_batched_tokens, max_model_len, vocab_size)
    return as_adapted(plans) if config.enable_lora else plans


def _allocate(
    config: WorkerConfig,
    model: ModelSpec,
    device: Device,
    num_blocks: int,
    cache_dtype: torch.dtype,
    block_groups: Sequence[BlockGroup],
) -> list[LayerCache]:
    groups = model.cache_groups
    try:
        return allocate_caches(groups, num_blocks, config.block_size, device.torch_device, cache_dtype, block_groups)
    except torch.OutOfMemoryError as error:
        size = num_blocks * kv_block_bytes(groups, config.block_size, cache_dtype, block_groups)
        raise SetupError(
            f"{device.name} has no room for {format_bytes(size)} of KV cache: lower --kv-cache-memory or "
            "--gpu-memory-fraction"
        ) from error


def _runner(
    config: WorkerConfig,
    family: Text,
    model: Decoder,
    caches: list[LayerCache],
    device: Device,
    sizes: Sizes,
    graphs: list[GraphSize],
    media: MediaRows | None,
) -> tuple[AsyncRunner, AsyncCompute]:
    extras = TextExtras(media, family.row_states(config, model.context, sizes), family.adapter_rows(config, model))
    compute = AsyncCompute(
        model,
        caches,
        device,
        RowLimits(config.max_num_seqs, sizes.max_model_len, config.block_size),
        max_num_batched_tokens=config.max_num_batched_tokens,
        capture=GraphCapture(graphs, config.cuda_graph_stall),
        extras=extras,
        host=host_memory(sizes.host.blocks, sizes.host.block_bytes, device.torch_device),
    )
    return ModelRunner(compute, joined(extras)), compute
