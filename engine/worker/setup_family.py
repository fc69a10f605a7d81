"""Sets up a model of any family on any device, until it has completed a real step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import msgspec
import torch

from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPlan

from ..layers.forward_batch import LayerCache
from ..layers.layer_context import LayerContext
from ..layers.rank_group import RankGroup
from ..model_config.attention_spec import AttentionSpec
from ..model_config.model_spec import LayerSpec
from ..model_config.transformers_encoder_config import TransformersEncoder
from ..models.decoder import Decoder
from ..models.pooling_model import PoolingModel
from .adapter_rows import store_of
from .adapter_setup import adapter_bytes, check_room, places_for
from .async_compute import AsyncCompute, AsyncRunner
from .audio_families import Transcription
from .cached_weights import open_cached
from .caches import allocate_caches, cache_groups, cache_tensors, choose_cache_dtype, host_memory
from .device import Device
from .device_lease import DeviceLease
from .errors import SetupError
from .executor import AsyncExecutor, Executor, Send, SyncExecutor
from .families import Family, Settled, Sizes, Text, agreed, with_rows
from .host_tier import check_host_tier, device_bytes, host_lines, with_host
from .limits import limits_of, with_limits
from .memory import available_memory, default_kv_bytes, format_bytes, resident_bytes
from .pooling_family import PoolingFamily
from .prefault import Prefault
from .runner import ModelRunner
from .setup_device import attention_notes, run_ahead
from .setup_drafts import Drafter, DraftSource, check_drafts, draft_lines, draft_of, make_proposer, open_draft
from .setup_parts import (
    ProgressCallback,
    Setup,
    cache_note,
    choose_dtype,
    cut_note,
    dtype_name,
    layer_context,
    load_weights,
    multiplied_from_codes,
    prepare_kernels,
    share_threads,
)
from .sync_compute import SyncCompute, SyncRunner
from .transformers_family import TransformersText
from .warmup import warm_up_drafts

_MEETING: Final = "waiting for the other workers"
_NOT_OURS: Final = "adapters are served of Whisper and of models of text that run in this server's own code"
_CPU: Final = torch.device("cpu")


def set_up_family(
    family: Family,
    config: WorkerConfig,
    progress: ProgressCallback,
    device: Device | None = None,
    weights_fd: int | None = None,
    meeting_fd: int | None = None,
) -> Setup:
    """See :func:`.setup.set_up_on`; ``family`` was opened for this kind of device.

    On a CPU the cache is sized before weights are loaded, so that a lack of memory is reported at once. On a device the
    model is made for the longest context wanted, and a step's memory is measured before the cache takes the rest. If
    the cache then holds less, a rotary scaling that depends on the length stays that of the longer context.
    """
    chosen = _choose(family, config, progress, device, meeting_fd)
    config, context = chosen.config, chosen.context
    kept = open_cached(
        family.checkpoint, config, context, weights_fd, lambda: _bytes_of(chosen.shapes()), family.beside
    )
    found = None if kept is None else kept.found
    settled = None if found is None else Settled(found.num_blocks, found.max_model_len, found.num_states)
    if context.adapters is not None and settled is None:
        free = available_memory() // config.workers if device is None else device.memory().free
        name = "this host" if device is None else device.name
        check_room(config, chosen.shapes().context.adapters, _bytes_of(chosen.shapes()), free, name)
    sizes = _sizes_of_host(family, chosen, settled) if device is None else None
    longest = chosen.wanted if sizes is None else sizes.max_model_len
    if chosen.draft is not None:
        chosen.draft.check_length(longest)
    model = load_weights(
        lambda context: family.make(context, longest), family.fill, family.checkpoint, config, context, progress, kept
    )
    if kept is not None and sizes is not None:
        kept.keep(sizes.max_model_len, sizes.blocks, sizes.num_states)
    drafter = None if chosen.draft is None else chosen.draft.load(config, model, longest, progress)
    if device is not None and isinstance(family, Text) and family.runs_ahead(config):
        running = _running_ahead(family, chosen, model, device, progress)
    else:
        if sizes is None:
            assert device is not None
            sizes = _sizes_of_device(family, chosen, model, device, progress)
        running = _running_in_turn(family, chosen, model, sizes, drafter)
        _warm_up_drafts(device, running, progress)
    _complete(running.runner, family.first_steps(running.config, model, running.sizes), progress)
    ready = _ready(family, chosen, model, running)
    return Setup(
        running.runner,
        running.executor,
        context.device,
        ready,
        running.ahead,
        chosen.has_own_cpus,
        store_of(running.runner.extras),
    )


@dataclass(frozen=True)
class _Chosen:
    """What is decided before the model is made."""

    config: WorkerConfig
    wanted: int
    """The longest sequence before the cache is sized."""
    context: LayerContext
    device: Device | None
    """None for the host's cores."""
    cache_dtype: torch.dtype
    draft: DraftSource | None
    shapes: Callable[[], Any]
    """The model without memory; made once."""
    has_own_cpus: bool
    notes: list[str]


@dataclass(frozen=True)
class _Running:
    """What runs the model's steps."""

    config: WorkerConfig
    """With as many rows as have recurrent states."""
    runner: SyncRunner | AsyncRunner
    executor: Callable[[Send, DeviceLease | None], Executor]
    sizes: Sizes
    memory: list[MemoryLine]
    notes: list[str]
    ahead: AsyncCompute | None = None


def _choose(
    family: Family, config: WorkerConfig, progress: ProgressCallback, device: Device | None, meeting_fd: int | None
) -> _Chosen:
    """Check the options against the model, prepare kernels, choose dtypes, and meet the other ranks."""
    at = _CPU if device is None else device.torch_device
    checkpoint = family.checkpoint
    if config.enable_lora:
        _check_adaptable(config, family)
    if config.batch_invariant and device is not None:
        _check_invariant(config, family)
    config = with_limits(config, family.limits)
    check_drafts(config, family)
    check_host_tier(config, family)
    wanted = family.longest(config)
    draft = open_draft(config, family, wanted)
    if isinstance(family, PoolingFamily) and not family.groups:
        config = msgspec.structs.replace(config, max_num_batched_tokens=max(config.max_num_batched_tokens, wanted))
    notes: list[str] = []
    has_own_cpus = False
    if device is None:
        notes, has_own_cpus = prepare_kernels(config, progress, alone=not _threads_of_torch(family))
    else:
        share_threads(config)
    packs = device is None and family.packs and native.library() is not None
    from_codes = packs and (config.quantization == "int8" or multiplied_from_codes(checkpoint.quantized))
    dtype = choose_dtype(
        config.dtype, at, checkpoint.dtype, batch_invariant=config.batch_invariant, from_codes=from_codes
    )
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, at, family.groups)
    ranks = None if meeting_fd is None else _joined(config, meeting_fd, at, progress)
    adapters = places_for(config, on_device=device is not None)
    context = layer_context(checkpoint, config, at, dtype, adapters)
    context = replace(context, packed=packs and dtype in PLAIN, ranks=ranks)

    @cache
    def shapes() -> Any:
        places = places_for(config, on_device=device is not None)
        return family.make(replace(context, shapes_only=True, adapters=places), 1)

    return _Chosen(config, wanted, context, device, cache_dtype, draft, shapes, has_own_cpus, notes)


def _sizes_of_host(family: Family, chosen: _Chosen, settled: Settled | None) -> Sizes:
    """Divide the host's memory before weights are loaded. ``settled``: weights are there, in a memory file."""
    config, shapes = chosen.config, chosen.shapes
    budget = config.kv_cache_memory or 0
    if config.kv_cache_memory is None and settled is None:
        needed = _bytes_of(shapes())
        needed += adapter_bytes(config, shapes().context.adapters) if chosen.context.adapters else 0
        needed += 0 if chosen.draft is None else chosen.draft.nbytes(config, chosen.context)
        needed += config.kv_offloading_size or 0
        budget = default_kv_bytes(needed, config.memory_share / config.workers)
    sizes = family.size(config, shapes, chosen.wanted, chosen.cache_dtype, budget, settled)
    sizes = with_host(config, agreed(sizes, chosen.context.ranks))
    if config.kv_offloading_size is not None:
        weights = 0 if settled is not None else _bytes_of(shapes())
        check_host_tier(config, family, weights + device_bytes(sizes))
    return sizes


def _sizes_of_device(family: Family, chosen: _Chosen, model: Any, device: Device, progress: ProgressCallback) -> Sizes:
    """Divide what a device has left beside ``model`` and its largest step."""
    config, context = chosen.config, chosen.context
    budget = _measured(config, family, model, chosen.wanted, device, chosen.cache_dtype, progress)
    budget -= adapter_bytes(config, context.adapters)
    sizes = family.size(config, lambda: model, chosen.wanted, chosen.cache_dtype, budget)
    return with_host(config, agreed(sizes, context.ranks))


def _running_ahead(
    family: Text, chosen: _Chosen, model: Decoder, device: Device, progress: ProgressCallback
) -> _Running:
    """A device that computes a step while the next is prepared."""
    config, context = chosen.config, chosen.context
    runner, ahead, sizes, memory = run_ahead(config, family, model, chosen.wanted, device, chosen.cache_dtype, progress)
    notes = attention_notes(config, family.spec, context.dtype, chosen.cache_dtype, context.device)
    config = with_rows(config, sizes.num_states)
    return _Running(config, runner, partial(AsyncExecutor, runner, ahead), sizes, memory, notes, ahead)


def _running_in_turn(family: Family, chosen: _Chosen, model: Any, sizes: Sizes, drafter: Drafter | None) -> _Running:
    """A CPU, or a device whose steps follow one another."""
    at, device = chosen.context.device, chosen.device
    config = with_rows(chosen.config, sizes.num_states)
    runner, calls, caches = _runner(config, family, model, sizes, at, chosen.cache_dtype, chosen.draft, drafter)
    pages = Prefault(cache_tensors(caches)) if device is None and caches and isinstance(family, Text) else None
    name = str(at) if device is None else device.name
    memory = [
        MemoryLine("weights", _bytes_of(model), f"{dtype_name(chosen.context.dtype)} on {name}"),
        *draft_lines(drafter),
        *family.memory(config, model, sizes),
    ]
    return _Running(config, runner, partial(SyncExecutor, runner, pages=pages), sizes, memory, call_notes(calls))


def _ready(family: Family, chosen: _Chosen, model: Any, running: _Running) -> WorkerReady:
    """What the engine and the operator learn of the worker."""
    config, sizes, at = running.config, running.sizes, chosen.context.device
    memory = [*running.memory, *host_lines(config, sizes.host, at)]
    notes = [*chosen.notes, *running.notes]
    if config.max_num_seqs < chosen.config.max_num_seqs:
        notes.append(
            f"{config.max_num_seqs} of {chosen.config.max_num_seqs} sequences run at once, memory has room for no more "
            "recurrent states; --kv-cache-memory gives them more"
        )
    notes += cut_note(sizes.max_model_len, chosen.wanted)
    notes += model.weights.note_lines()
    notes += cache_note(family.checkpoint, chosen.cache_dtype)
    if chosen.device is None:
        memory.append(
            MemoryLine("worker process", resident_bytes(), "resident now: weights, code, what was touched so far")
        )
    limits = msgspec.structs.replace(
        limits_of(config),
        max_encodings=family.limits.max_encodings,
        max_mixed_encodings=family.limits.max_mixed_encodings,
        max_admitted_tokens=family.limits.max_admitted_tokens and config.max_prefill_chunk,
    )
    groups = cache_groups(family.groups, sizes.pages)
    ready = WorkerReady(sizes.blocks, sizes.max_model_len, memory, notes, limits, groups, host=sizes.host)
    return family.completed(ready, config, model, sizes)


def _check_adaptable(config: WorkerConfig, family: Family) -> None:
    """Raise :class:`SetupError` if the model cannot have adapters."""
    why = ""
    if isinstance(family, PoolingFamily):
        if isinstance(family.spec.backbone, TransformersEncoder):
            why = f"{_NOT_OURS}; leave it out"
        elif family.spec.adapters:
            why = f"the model has adapters of its own, for {', '.join(family.spec.adapters)}; leave it out"
    elif not isinstance(family, Text | Transcription) or isinstance(family, TransformersText):
        why = f"{_NOT_OURS}; leave it out"
    if why:
        raise SetupError(f"--enable-lora: {why}")


def _check_invariant(config: WorkerConfig, family: Family) -> None:
    """Raise :class:`SetupError` if the model cannot be batch-invariant on a device."""
    why = ""
    if config.tensor_parallel_size > 1:
        why = "sums over GPUs have no order of their own; leave --tensor-parallel-size out"
    elif config.enable_lora:
        why = "what adapters add on a GPU depends on the batch; leave --enable-lora out"
    elif type(family) is not Text or family.spec.states or not all(map(_attends, family.spec.layers)):
        why = "on a GPU it holds for models of text that attend to keys and values in every layer; use --device cpu"
    if why:
        raise SetupError(f"--batch-invariant: {why}")


def _attends(layer: LayerSpec) -> bool:
    return isinstance(layer.mixer, AttentionSpec)


def _threads_of_torch(family: Family) -> bool:
    """Whether large computations may run in torch beside our kernels."""
    return isinstance(family, Text) or (isinstance(family, PoolingFamily) and family.has_encoder)


def _joined(config: WorkerConfig, meeting_fd: int, device: torch.device, progress: ProgressCallback) -> RankGroup:
    """Join the other ranks, once all have come."""
    progress(_MEETING, 0, 1)
    ranks = RankGroup(config.rank, config.group_size, meeting_fd, device)
    progress(_MEETING, 1, 1)
    return ranks


def _bytes_of(model: Any) -> int:
    """Bytes of all weights."""
    total: int = model.total_bytes if isinstance(model, PoolingModel) else model.weights.total_bytes
    return total


def _runner(
    config: WorkerConfig,
    family: Family,
    model: Any,
    sizes: Sizes,
    at: torch.device,
    cache_dtype: torch.dtype,
    source: DraftSource | None = None,
    drafter: Drafter | None = None,
) -> tuple[SyncRunner, list[str], list[LayerCache]]:
    """Make the runner; returns it with the operations outside its program, and its caches.

    ``drafter`` is what ``source`` has loaded. Raises :class:`SetupError` without memory for the caches.
    """
    caches: list[LayerCache] = []
    try:
        if family.groups:
            caches = allocate_caches(family.groups, sizes.blocks, config.block_size, at, cache_dtype, sizes.pages)
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        room = format_bytes(sizes.blocks * sizes.block_bytes)
        raise SetupError(f"{at} has no room for {room} of KV cache: lower --kv-cache-memory") from error
    extras = family.extras(config, model, sizes)
    own, draft = draft_of(source, drafter, caches)
    compute = SyncCompute(
        model,
        own,
        slots=config.max_num_seqs,
        max_model_len=sizes.max_model_len,
        block_size=config.block_size,
        device=at,
        extras=extras,
        proposer=make_proposer(config),
        draft=draft,
        host=host_memory(sizes.host.blocks, sizes.host.block_bytes, at),
    )
    return ModelRunner(compute, extras), compute.calls, caches


def _measured(
    config: WorkerConfig,
    family: Family,
    model: Any,
    longest: int,
    device: Device,
    cache_dtype: torch.dtype,
    progress: ProgressCallback,
) -> int:
    """Bytes of a device for caches: its share, without weights and the largest step."""
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    progress("measuring memory", 0, 1)
    device.settle()
    device.forget_peak()
    before = device.memory()
    left = int(before.total * config.gpu_memory_fraction * config.memory_share) - before.reserved - before.outside
    largest = family.largest_step(config, longest)
    if largest is None:
        return left // 2  # the rest is for activations, whose size depends on the step
    plan, sizes = largest
    try:
        runner, *_ = _runner(config, family, model, sizes, device.torch_device, cache_dtype)
        runner.step(plan)
    except (torch.OutOfMemoryError, SetupError) as error:
        raise SetupError(f"{device.name} has no room for its largest step: {family.no_room}") from error
    peak = device.memory().peak
    del runner
    device.settle()
    progress("measuring memory", 1, 1)
    return left - (peak - before.reserved)


def _warm_up_drafts(device: Device | None, running: _Running, progress: ProgressCallback) -> None:
    """Prepare a device's kernels for steps with drafts, if there are any."""
    config, sizes = running.config, running.sizes
    if device is None or config.speculative is None:
        return
    warm_up_drafts(
        running.runner,
        config.max_num_seqs,
        config.speculative.num_speculative_tokens,
        config.max_num_batched_tokens,
        sizes.max_model_len,
        progress,
    )


def _complete(runner: SyncRunner | AsyncRunner, plans: Sequence[StepPlan], progress: ProgressCallback) -> None:
    """Run the first steps, so that readiness means a model that ran."""
    for number, plan in enumerate(plans):
        progress("warming up", number, len(plans))
        runner.step(plan)
    runner.release([0])
    progress("warming up", len(plans), len(plans))


def call_notes(calls: Sequence[str]) -> list[str]:
    """Notes on the operations for which a pass leaves its program."""
    return [
        f"the pass leaves its program {count} times a step, slower, for {what}"
        for what, count in Counter(calls).most_common()
    ]
