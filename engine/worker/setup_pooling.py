"""A worker whose model makes vectors and scores of prompts."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.actors import MemoryLine, WorkerReady
from stentor.protocols.ipc.config import StepLimits, WorkerConfig
from stentor.protocols.ipc.pooling import AttentionScope, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

from ..layers.forward_batch import LayerCache
from ..loading.errors import CheckpointError
from ..loading.pooling_checkpoint import open_pooling
from ..loading.pt_file import read_pt
from ..model_config.model_spec import ModelSpec
from ..model_config.pooling_config import PoolingConfig
from ..models.pooling_model import PoolingModel, Tensors
from .cached_weights import open_cached
from .caches import allocate_caches, choose_cache_dtype, kv_block_bytes
from .device import Device
from .errors import SetupError
from .limits import POOLING, limits_of, with_limits
from .memory import GIB, default_kv_bytes, resident_bytes
from .pooling_runner import PoolingRunner
from .setup_parts import ProgressCallback, Setup, choose_dtype, dtype_name, layer_context, load_weights, prepare_kernels

_CPU = torch.device("cpu")
_TRIAL_TOKENS = 16
_VALUES_A_SLICE = 1 << 29
"""Of weights, each multiplied for one token, in 2 to 3 ms: what two cores do."""
_LEAST_MIXED = 32


def set_up_pooling(
    config: WorkerConfig, progress: ProgressCallback, device: Device | None = None, weights_fd: int | None = None
) -> Setup:
    """See :func:`.setup.set_up`; ``device`` is None on the host's own cores."""
    at = _CPU if device is None else device.torch_device
    checkpoint = open_pooling(Path(config.model), config.pooler)
    model_config = checkpoint.pooling
    config = with_limits(config, suited_limits(model_config, at.type))
    max_model_len = _longest(config, model_config)
    whole = not model_config.causal
    if whole:  # a prompt is computed at once, however long it is
        room = max(config.max_num_batched_tokens, max_model_len)
        config = msgspec.structs.replace(config, max_num_batched_tokens=room)
    dtype = choose_dtype(config.dtype, at, checkpoint.dtype, batch_invariant=config.batch_invariant)
    notes = prepare_kernels(config, progress) if device is None else []
    context = layer_context(checkpoint, config, at, dtype)
    context = replace(context, packed=device is None and native.library() is not None and dtype in PLAIN)
    beside = [_file(checkpoint.folder, name) for name in model_config.beside]
    shapes = replace(context, shapes_only=True)
    kept = open_cached(
        checkpoint, config, context, weights_fd, lambda: PoolingModel(model_config, shapes, 1).total_bytes, beside
    )
    settled = None if kept is None or kept.found is None else kept.found.num_blocks
    make = partial(PoolingModel, model_config, max_model_len=max_model_len)
    fill = partial(PoolingModel.load, files=lambda name: _tensors(_file(checkpoint.folder, name)))
    model = load_weights(make, fill, checkpoint, config, context, progress, kept)
    caches: list[LayerCache] = []
    blocks = config.max_num_seqs * -(-max_model_len // config.block_size)
    kv_bytes = 0
    if not whole:
        blocks, caches, kv_bytes = _caches(config, model_config, at, dtype, max_model_len, device, settled)
    if kept is not None:
        kept.keep(max_model_len, blocks)
    runner = PoolingRunner(
        model,
        caches,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=at,
    )
    _complete_a_step(runner, model, max_model_len, config.block_size, progress)
    notes += model.weights.note_lines()
    where = at if device is None else device.name
    memory = [MemoryLine("weights", model.total_bytes, f"{dtype_name(dtype)} on {where}")]
    if kv_bytes:
        memory.append(MemoryLine("KV cache", kv_bytes, f"{blocks} blocks of {config.block_size} tokens"))
    if device is None:
        memory.append(MemoryLine("worker process", resident_bytes(), "resident now: weights and code"))
    attention_scope: AttentionScope = "all" if whole else "before"
    return Setup(
        runner, WorkerReady(blocks, max_model_len, memory, notes, limits_of(config), attention_scope=attention_scope)
    )


def suited_limits(model: PoolingConfig, device: str) -> StepLimits:
    """For a device of type ``cpu`` or ``cuda``, where the operator names none.

    On a CPU others wait for what a step computes between two chances to let them in: a layer of an encoder, all of a
    model that has a cache. Beside them a step has so many tokens that this takes about a slice of the lease, within
    reason.
    """
    limits = POOLING[device]
    if device != "cpu":
        return limits
    backbone = model.backbone
    if isinstance(backbone, ModelSpec):
        values = backbone.products(0) * (len(backbone.layers) if model.causal else 1)
    else:
        values = (4 * backbone.hidden_size + 3 * backbone.intermediate_size) * backbone.hidden_size
    mixed = max(_LEAST_MIXED, min(limits.max_mixed_prefill_tokens, _VALUES_A_SLICE // values))
    return msgspec.structs.replace(limits, max_mixed_prefill_tokens=mixed)


def _longest(config: WorkerConfig, model: PoolingConfig) -> int:
    if config.max_model_len is not None and config.max_model_len > model.backbone.max_position:
        raise SetupError(
            f"--max-model-len {config.max_model_len}: {model.architecture} was made for at most "
            f"{model.backbone.max_position}"
        )
    return config.max_model_len or model.max_length


def _file(folder: Path, name: str) -> Path:
    """A file beside the model, or that of a module's folder."""
    path = folder / name
    if path.is_dir():
        path = path / "model.safetensors"
        if not path.is_file():
            path = path.with_name("pytorch_model.bin")
    return path


def _tensors(path: Path) -> Tensors:
    if path.suffix != ".safetensors":
        return read_pt(path)
    try:
        return [*load_file(path).items()]
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"Cannot read {path}: {str(error).splitlines()[0]}.") from error


def _caches(
    config: WorkerConfig,
    model: PoolingConfig,
    at: torch.device,
    dtype: torch.dtype,
    longest: int,
    device: Device | None,
    settled: int | None = None,
) -> tuple[int, list[LayerCache], int]:
    """Blocks, and the memory that they lie in: for as many prompts as run at once, as far as memory goes.

    ``settled`` are the blocks of a worker that this one follows: its engine counts on them.
    """
    assert isinstance(model.backbone, ModelSpec)
    cache_dtype = choose_cache_dtype(config.kv_cache_dtype, dtype, at)
    block_bytes = kv_block_bytes(model.backbone.cache_groups, config.block_size, cache_dtype)
    each = -(-longest // config.block_size)
    if config.kv_cache_memory is not None:
        budget = config.kv_cache_memory
    elif device is None:
        budget = default_kv_bytes(0, config.memory_share)
    else:
        found = device.memory()
        budget = int(found.total * config.gpu_memory_fraction * config.memory_share) - found.reserved - found.outside
        budget //= 2  # the rest is for activations, which are as large as a step is
    blocks = min(budget // block_bytes, config.max_num_seqs * each) if settled is None else settled
    if blocks < each:
        raise SetupError(
            f"{max(budget, 0) / GIB:.2f} GiB of KV cache do not hold one prompt of {longest} tokens, which needs "
            f"{each * block_bytes / GIB:.2f} GiB: raise --kv-cache-memory or lower --max-model-len"
        )
    try:
        return (
            blocks,
            allocate_caches(model.backbone.cache_groups, blocks, config.block_size, at, cache_dtype),
            blocks * block_bytes,
        )
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        raise SetupError(f"{at} has no room for the KV cache: lower --kv-cache-memory") from error


def _complete_a_step(
    runner: PoolingRunner, model: PoolingModel, longest: int, block_size: int, progress: ProgressCallback
) -> None:
    """Pools a few tokens, so that readiness means a model that ran."""
    progress("warming up", 0, 1)
    length = max(1, min(_TRIAL_TOKENS, block_size, longest))
    tokens = [token % model.config.vocab_size for token in range(1, length + 1)]
    row = NewRow(0, tokens, length, SamplingParams(max_tokens=0), 0, [0], pooling=Pooling(model.tasks[0]))
    runner.step(StepPlan(0, 0, [], [row], [RowStep(0, 0, length, [], False)]))
    runner.release([0])
    progress("warming up", 1, 1)
