"""Sets up a model of any family on any device, until it has completed a real step."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPlan

from ...layers.forward_batch import LayerCache
from ...models.decoder import Decoder
from ...models.pooling_model import PoolingModel
from ..adapters.setup import adapter_bytes, check_room
from ..cached_weights import open_cached
from ..caches import allocate_caches, cache_groups, cache_tensors, host_memory, kv_block_bytes
from ..compute.async_compute import AsyncCompute, AsyncRunner
from ..compute.executor import AsyncExecutor, Executor, Send, SyncExecutor
from ..compute.runner import ModelRunner
from ..compute.sync_compute import SyncCompute, SyncRunner
from ..device.device import Device
from ..device.graphs import GraphCapture, draft_sizes
from ..device.lease import DeviceLease
from ..device.prefault import Prefault
from ..errors import SetupError
from ..families.family import Family, FormerSizes, Sizes, Text, agreed, with_rows
from ..families.host_tier import check_host_tier, device_bytes, host_lines, with_host
from ..families.setup_parts import (
    ProgressCallback,
    Setup,
    cache_note,
    cut_note,
    dtype_name,
    load_weights,
)
from ..limits import limits_of
from ..memory import available_memory, default_kv_bytes, format_bytes, memory_limit, resident_bytes
from ..passes.adapter_rows import store_of
from ..passes.pass_graphs import GraphsOf, PassGraphs
from ..rows.rows import RowLimits, RowTable
from ..rows.states import RowStates
from .choices import SetupChoices, choose
from .device import attention_notes, run_ahead
from .drafts import Drafter, draft_lines, draft_of, make_proposer
from .profile import graph_bytes
from .warmup import warm_up_drafts

logger = logging.getLogger(__name__)


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
    chosen = choose(family, config, progress, device, meeting_fd)
    config, context = chosen.config, chosen.context
    kept = open_cached(
        family.checkpoint, config, context, weights_fd, lambda: _bytes_of(chosen.shapes()), family.beside
    )
    found = None if kept is None else kept.found
    former = None if found is None else FormerSizes(found.num_blocks, found.max_model_len, found.num_states)
    if context.adapters is not None and former is None:
        free = available_memory() // config.workers if device is None else device.memory().free
        name = "this host" if device is None else device.name
        check_room(config, chosen.shapes().context.adapters, _bytes_of(chosen.shapes()), free, name)
    sizes = _sizes_of_host(family, chosen, former) if device is None else None
    longest = chosen.wanted if sizes is None else sizes.max_model_len
    if chosen.draft is not None:
        chosen.draft.check_length(longest)
    model = load_weights(
        lambda context: family.made(context, longest), family.fill, family.checkpoint, config, context, progress, kept
    )
    if kept is not None and sizes is not None:
        kept.keep(sizes.max_model_len, sizes.blocks, sizes.num_states)
    drafter = None if chosen.draft is None else chosen.draft.load(config, model, longest, progress)
    if device is not None and isinstance(family, Text) and family.runs_ahead(config):
        running = _running_ahead(family, chosen, model, device)
    else:
        if sizes is None:
            assert device is not None
            sizes = _sizes_of_device(family, chosen, model, device)
        running = _running_in_turn(family, chosen, model, sizes, drafter)
        _warm_up_drafts(device, running, progress)
        running.memory.extend(_graph_lines(device, running))
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


class _Running(msgspec.Struct, frozen=True):
    """The parts that run the model's steps, with their sizes and start-up notes."""

    config: WorkerConfig
    """With as many rows as have recurrent states."""
    runner: SyncRunner | AsyncRunner
    executor: Callable[[Send, DeviceLease | None], Executor]
    sizes: Sizes
    memory: list[MemoryLine]
    notes: list[str]
    ahead: AsyncCompute | None = None
    graphs: Sequence[PassGraphs] = ()
    """Of steps with drafts."""


def _sizes_of_host(family: Family, chosen: SetupChoices, former: FormerSizes | None) -> Sizes:
    """Divide the host's memory before weights are loaded. ``former``: weights are there, in a memory file."""
    config, shapes = chosen.config, chosen.shapes
    budget, weights, tier = config.kv_cache_memory or 0, 0, config.kv_offloading_size or 0
    if former is None:
        weights = _bytes_of(shapes())
        weights += adapter_bytes(config, shapes().context.adapters) if chosen.context.adapters else 0
        weights += 0 if chosen.draft is None else chosen.draft.nbytes(config, chosen.context)
        if config.kv_cache_memory is None:
            budget = default_kv_bytes(weights + tier, config.memory_share / config.workers)
    sizes = family.size(config, shapes, chosen.wanted, chosen.cache_dtype, budget, former)
    if config.kv_cache_memory is not None and device_bytes(sizes) and config.worker_number == 0:
        beside = weights * config.workers + tier * config.data_parallel_size
        _check_kv_bytes(config.kv_cache_memory, beside, config.workers)
    sizes = with_host(config, agreed(sizes, chosen.context.ranks))
    if config.kv_offloading_size is not None:
        weights = 0 if former is not None else _bytes_of(shapes())
        check_host_tier(config, family, weights + device_bytes(sizes))
    return sizes


def _check_kv_bytes(asked: int, beside: int, workers: int) -> None:
    """Judges an explicit size of the KV cache, of which a host takes pages only as blocks are first used.

    ``asked``: bytes of each of ``workers``. ``beside``: bytes of weights and of the host tier that are not taken yet.
    Warns where the free memory has no room for all. Raises :class:`..errors.SetupError` where the memory limit has none
    for the cache.
    """
    cache, limit, free = asked * workers, memory_limit(), available_memory()
    each = f" for each of {workers} workers" if workers > 1 else ""
    if cache > limit:
        raise SetupError(
            f"--kv-cache-memory: {format_bytes(asked)}{each} are more than the {format_bytes(limit)} of this machine, "
            "container or systemd unit: lower it, or raise the memory limit"
        )
    if cache + beside > free:
        logger.warning(
            "--kv-cache-memory: %s%s may not fit beside %s that are still to be loaded, %s are free and the limit is "
            "%s; workers are killed when the cache fills: lower it, or raise the memory limit",
            *(format_bytes(asked), each, *map(format_bytes, (beside, free, limit))),
        )


def _sizes_of_device(family: Family, chosen: SetupChoices, model: Any, device: Device) -> Sizes:
    """Divide what a device has left beside ``model`` and its largest step."""
    config, context = chosen.config, chosen.context
    budget = _measured(family, chosen, model, device)
    budget -= adapter_bytes(config, context.adapters)
    if family.groups and draft_sizes(config):
        budget -= kv_block_bytes(family.groups, config.block_size, chosen.cache_dtype)  # the null block of graphs
    sizes = family.size(config, lambda: model, chosen.wanted, chosen.cache_dtype, budget)
    return with_host(config, agreed(sizes, context.ranks))


def _running_ahead(family: Text, chosen: SetupChoices, model: Decoder, device: Device) -> _Running:
    """A device that computes a step while the next is prepared."""
    config, context = chosen.config, chosen.context
    runner, ahead, sizes, memory = run_ahead(family, chosen, model, device)
    notes = attention_notes(config, family.spec, context.dtype, chosen.cache_dtype, context.device)
    config = with_rows(config, sizes.num_states)
    return _Running(config, runner, partial(AsyncExecutor, runner, ahead), sizes, memory, notes, ahead)


def _running_in_turn(
    family: Family, chosen: SetupChoices, model: Any, sizes: Sizes, drafter: Drafter | None
) -> _Running:
    """A CPU, or a device whose steps follow one another."""
    at, device = chosen.context.device, chosen.device
    config = with_rows(chosen.config, sizes.num_states)
    runner, calls, caches = _runner(family, chosen, model, sizes, drafter)
    prefault = Prefault(cache_tensors(caches)) if device is None and caches and isinstance(family, Text) else None
    graphs = runner.compute.graphs if isinstance(runner.compute, SyncCompute) else []
    name = str(at) if device is None else device.name
    memory = [
        MemoryLine("weights", _bytes_of(model), f"{dtype_name(chosen.context.dtype)} on {name}"),
        *draft_lines(drafter),
        *family.memory(config, model, sizes),
    ]
    executor = partial(SyncExecutor, runner, prefault=prefault, graphs=graphs)
    return _Running(config, runner, executor, sizes, memory, call_notes(calls), graphs=graphs)


def _ready(family: Family, chosen: SetupChoices, model: Any, running: _Running) -> WorkerReady:
    """The worker's limits for the engine, and its start-up summary for the operator."""
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
    groups = cache_groups(family.groups, sizes.block_groups)
    ready = WorkerReady(sizes.blocks, sizes.max_model_len, memory, notes, limits, groups, host=sizes.host)
    return family.completed(ready, config, model, sizes)


def _bytes_of(model: Any) -> int:
    """Bytes of all weights."""
    total: int = model.total_bytes if isinstance(model, PoolingModel) else model.weights.total_bytes
    return total


def _runner(
    family: Family, chosen: SetupChoices, model: Any, sizes: Sizes, drafter: Drafter | None = None
) -> tuple[SyncRunner, list[str], list[LayerCache]]:
    """Make the runner; returns it with the operations outside its program, and its caches.

    Raises :class:`SetupError` without memory for the caches.
    """
    config, at, cache_dtype = with_rows(chosen.config, sizes.num_states), chosen.context.device, chosen.cache_dtype
    caches: list[LayerCache] = []
    graphs = _pass_graphs(family, chosen, model, sizes)
    blocks = sizes.blocks + (graphs is not None)  # the last one is the null block
    try:
        if family.groups:
            caches = allocate_caches(family.groups, blocks, config.block_size, at, cache_dtype, sizes.block_groups)
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        room = format_bytes(sizes.blocks * sizes.block_bytes)
        raise SetupError(f"{at} has no room for {room} of KV cache: lower --kv-cache-memory") from error
    extras = family.extras(config, model, sizes)
    own, draft = draft_of(chosen.draft, drafter, caches)
    chunk = min(config.max_prefill_chunk, config.max_num_batched_tokens)
    compute = SyncCompute(
        model,
        own,
        at,
        RowLimits(config.max_num_seqs, sizes.max_model_len, config.block_size, chunk),
        extras=extras,
        drafts=draft or make_proposer(config),
        host=host_memory(sizes.host.blocks, sizes.host.block_bytes, at),
        graphs=graphs,
    )
    return ModelRunner(compute, extras), compute.calls, caches


def _pass_graphs(family: Family, chosen: SetupChoices, model: Any, sizes: Sizes) -> GraphsOf | None:
    """Makes the graphs of steps with drafts; None on a CPU, and for models whose passes cannot be captured."""
    device, captured = chosen.device, draft_sizes(chosen.config)
    if device is None or not captured or not isinstance(family, Text) or not isinstance(model, Decoder):
        return None
    config = chosen.config
    capture = GraphCapture(captured, config.cuda_graph_stall)

    def make(
        model: Decoder,
        caches: Sequence[LayerCache],
        rows: RowTable,
        *,
        states: RowStates | None = None,
        keeps_hidden: bool = False,
        taps: tuple[int, ...] = (),
    ) -> PassGraphs:
        given = model, caches, rows, device, capture, sizes.max_model_len
        return PassGraphs(*given, states=states, keeps_hidden=keeps_hidden, taps=taps)

    return make


def _measured(family: Family, chosen: SetupChoices, model: Any, device: Device) -> int:
    """Bytes of a device for caches: its share, without weights and the largest step."""
    config = chosen.config
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    chosen.progress("measuring memory", 0, 1)
    device.settle()
    device.forget_peak()
    before = device.memory()
    left = int(before.total * config.gpu_memory_fraction * config.memory_share) - before.reserved - before.outside
    largest = family.largest_step(config, chosen.wanted)
    if largest is None:
        return left // 2  # the rest is for activations, whose size depends on the step
    plan, sizes = largest
    try:
        runner, *_ = _runner(family, chosen, model, sizes)
        runner.step(plan)
    except (torch.OutOfMemoryError, SetupError) as error:
        raise SetupError(f"{device.name} has no room for its largest step: {family.no_room}") from error
    peak = device.memory().peak
    del runner
    device.settle()
    chosen.progress("measuring memory", 1, 1)
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
        running.graphs,
    )


def _graph_lines(device: Device | None, running: _Running) -> list[MemoryLine]:
    """The memory of the graphs of steps with drafts, which are captured while serving; captures the first of them."""
    if device is None or not running.graphs:
        return []
    count = len(draft_sizes(running.config))
    reserved = sum(graph_bytes(device, each.advance, count) + each.buffer_bytes for each in running.graphs)
    what = f"{count} sizes of steps with drafts, reserved, with their logits and inputs"
    return [MemoryLine("CUDA graphs", reserved, what)]


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
