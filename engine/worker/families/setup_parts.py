"""Steps of set-up that all devices share."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import torch
from msgspec.structs import replace

from stentor.kernels import native
from stentor.kernels.linear_packed.crossover import describe_crossover, measure_crossover
from stentor.kernels.native.memory import keep_freed_memory
from stentor.kernels.native.processor import describe_tiles, multiplies_bfloat16
from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.config import DType, WorkerConfig

from ...core.cache.needs import BlockNeeds
from ...layers.linear.adapters import AdapterPlaces
from ...layers.linear.layer_context import LayerContext
from ...loading.checkpoint import Checkpoint
from ...loading.weights import iterate_weights
from ...models.decoder import Decoder
from ...models.draft_head import DraftHead
from ...models.encoder_decoder import EncoderDecoder
from ...models.pooling_model import PoolingModel
from ...models.speech.framewise import FramewiseTranscriber
from ...models.speech.streamed import StreamedTranscriber
from ...models.transformers.decoder import TransformersDecoder
from ...quantization.choose import LinearTraits, select
from ...quantization.formats import OnlineFormat, QuantizationRule, QuantizedCheckpoint
from ...sharing.cpu_plan import CpuPlan, WorkerPlace, plan_cpus
from ...sharing.cpu_topology import read_topology
from ..adapters.store import AdapterStore
from ..cached_weights import CachedWeights
from ..caches import BlockGroup
from ..compute.async_compute import AsyncCompute
from ..compute.executor import Executor, Send
from ..compute.runner import ModelRunner
from ..device.lease import DeviceLease
from ..errors import SetupError
from ..memory import format_bytes

ProgressCallback = Callable[[str, int, int], None]
"""(phase, done, total): in bytes while weights load, in steps while warming up."""

_BLOCK_MULTIPLE = 16
"""Keys of a block fill whole vectors."""
_WHOLE_GROUPS = 1 << 10
"""A number of inputs and outputs that every group size divides."""


class Setup(msgspec.Struct, frozen=True):
    runner: ModelRunner[Any, Any]
    executor: Callable[[Send, DeviceLease | None], Executor]
    """Makes the executor of its steps."""
    device: torch.device
    ready: WorkerReady
    ahead: AsyncCompute | None = None
    """The runner's compute if it runs ahead."""
    has_own_cpus: bool = False
    """Whether workers of other models compute on other CPUs."""
    adapters: AdapterStore | None = None
    """Set if adapters are enabled."""


def choose_dtype(
    wanted: DType, device: torch.device, stored: str, *, batch_invariant: bool, from_codes: bool = False
) -> torch.dtype:
    """The compute dtype: as requested; else bfloat16 if the machine multiplies it, or weights are ``from_codes``; else
    float32.

    Coded weights need no bfloat16 instructions.
    """
    if batch_invariant and device.type == "cpu":
        if wanted not in ("auto", "float32"):
            raise SetupError("--batch-invariant holds on a CPU in float32: use --dtype float32")
        return torch.float32
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted]
    if device.type == "cuda":
        return torch.float16 if stored == "float16" else torch.bfloat16
    return torch.bfloat16 if from_codes or multiplies_bfloat16() else torch.float32


def multiplied_from_codes(quantized: QuantizedCheckpoint | None) -> bool:
    """Whether a CPU multiplies by most weights in their stored codes, unless exact inputs are requested."""
    if quantized is None:
        return False
    formats = Counter(quantized.parts.values()) or Counter(rule.format for rule in quantized.rules)
    if not formats:
        return False
    ((format, _),) = formats.most_common(1)
    layer = LinearTraits(format, torch.device("cpu"), torch.bfloat16, _WHOLE_GROUPS, (_WHOLE_GROUPS,), packed=True)
    return select(layer).name == "packed"


class _Positions(Protocol):
    @property
    def architecture(self) -> str: ...

    @property
    def max_position(self) -> int: ...


def length_option(config: WorkerConfig) -> str:
    """The option that limits the worker's context length."""
    return "--transcription-max-model-len" if config.name == "transcription" else "--max-model-len"


def longest_of(config: WorkerConfig, model: _Positions, default: int | None = None) -> int:
    """The longest sequence before the cache is sized. Raises :class:`SetupError` if the model does not support it."""
    if config.max_model_len is not None and config.max_model_len > model.max_position:
        raise SetupError(
            f"{length_option(config)} {config.max_model_len}: {model.architecture} was made for at most "
            f"{model.max_position}; lower it"
        )
    if config.block_size % _BLOCK_MULTIPLE:
        raise SetupError(f"--block-size {config.block_size}: expected a multiple of {_BLOCK_MULTIPLE}")
    return config.max_model_len or default or model.max_position


def check_plain(config: WorkerConfig) -> None:
    """Raise :class:`SetupError` for options that transformers' modules do not support."""
    if config.batch_invariant:
        raise SetupError(
            "--batch-invariant: torch's products, which transformers' modules use, depend on what shares a batch; "
            "use a model that is native here"
        )
    if config.quantization != "none":
        raise SetupError(f"--quantization {config.quantization}: transformers' modules keep plain weights")


def block_needs(config: WorkerConfig, block_groups: Sequence[BlockGroup] = ()) -> BlockNeeds:
    """The cache arithmetic of sequences, as in the scheduler."""
    chunk = min(config.max_num_batched_tokens, config.max_prefill_chunk)
    return BlockNeeds(config.block_size, [group.window for group in block_groups] or [0], chunk)


def fit_length(
    config: WorkerConfig,
    wanted: int,
    num_blocks: int,
    block_bytes: int,
    budget: int,
    block_groups: Sequence[BlockGroup] = (),
) -> int:
    """``wanted`` cut to what a cache of ``budget`` bytes holds. A context length set by the operator must fit."""
    needs = block_needs(config, block_groups)
    tokens = needs.longest(max(num_blocks, 0))
    needed = config.max_model_len or 1
    if tokens < needed:
        raise SetupError(
            f"{format_bytes(max(budget, 0))} of KV cache hold {tokens} tokens, one sequence "
            f"needs {format_bytes(needs.of(needed) * block_bytes)}: raise --kv-cache-memory or "
            f"lower {length_option(config)}"
        )
    return min(wanted, tokens)


def cut_note(max_model_len: int, wanted: int) -> list[str]:
    """The note about a reduced context length, if it was."""
    if max_model_len >= wanted:
        return []
    return [
        f"the context is cut from {wanted} tokens to the {max_model_len} that the KV cache holds; "
        "--kv-cache-memory gives it more"
    ]


def cache_note(checkpoint: Checkpoint, cache_dtype: torch.dtype) -> list[str]:
    """The note about unused scales for a float8 cache, if there are any."""
    stored = checkpoint.quantized is not None and checkpoint.quantized.kv_cache_fp8
    if not stored or cache_dtype.itemsize == 1:
        return []
    return ["the checkpoint has scales for an fp8 KV cache: --kv-cache-dtype fp8 uses them, and holds twice the tokens"]


def layer_context(
    checkpoint: Checkpoint,
    config: WorkerConfig,
    device: torch.device,
    dtype: torch.dtype,
    adapters: AdapterPlaces | None = None,
) -> LayerContext:
    """How this worker's tensors are made and multiplied; weights as in the checkpoint, or quantised at load."""
    quantized, wanted = checkpoint.quantized, config.quantization
    if wanted != "none":
        if quantized is not None:
            raise SetupError(
                f"--quantization {wanted}: the weights are quantised already ({quantized.method}); leave it out"
            )
        rule = QuantizationRule(("Linear",), OnlineFormat(wanted))
        quantized = QuantizedCheckpoint(f"--quantization {wanted}", (rule,), ignore=("lm_head",))
    tells = config.return_routed_experts
    return LayerContext(
        device,
        dtype,
        config.batch_invariant,
        quantized,
        tells_experts=tells,
        moe_backend=config.moe_backend,
        adapters=adapters,
        part=checkpoint.part,
    )


def prepare_kernels(config: WorkerConfig, progress: ProgressCallback, *, alone: bool) -> tuple[list[str], bool]:
    """Compile the CPU kernels and set threads. Returns notes for the operator, and whether the CPUs are this model's
    own.

    ``alone``: all large computations run in our kernels, which get the threads; torch gets them if there are no
    kernels.
    """
    kernels = native.prepare(progress=lambda done, total: progress("compiling CPU kernels", done, total))
    reason = native.unavailable_reason()
    ours = alone and reason is None
    plan = hold(choose_cpus(config, native.threads() if ours else torch.get_num_threads()))
    if ours:
        keep_freed_memory()
        native.set_threads(plan.threads)
        torch.set_num_threads(1)
    else:
        torch.set_num_threads(plan.threads)
    if reason is not None:
        products: str | None = f"CPU kernels run in plain torch, several times slower: {reason}"
    else:
        products = describe_tiles()
        if (limits := measure_crossover()) is not None:
            products = f"{products}: {describe_crossover(limits)}"
    ahead = [] if kernels is None or not kernels.is_prebuilt else [f"CPU kernels were built ahead: {kernels.path}"]
    return [*ahead, *([] if products is None else [products]), f"computes with {plan}"], plan.is_own


def share_threads(config: WorkerConfig) -> None:
    """Set the threads of torch and of our kernels beside a device."""
    torch.set_num_threads(choose_cpus(config, torch.get_num_threads()).threads)


M = TypeVar(
    "M",
    bound=Decoder
    | DraftHead
    | TransformersDecoder
    | EncoderDecoder
    | FramewiseTranscriber
    | StreamedTranscriber
    | PoolingModel,
)


def load_weights(
    make: Callable[[LayerContext], M],
    fill: Callable[[M, Iterable[tuple[str, torch.Tensor]]], None],
    checkpoint: Checkpoint,
    config: WorkerConfig,
    context: LayerContext,
    progress: ProgressCallback,
    kept: CachedWeights | None = None,
    *,
    stored_as: Callable[[str], str] | None = None,
) -> M:
    """Make a model with ``make`` and load the checkpoint's weights with ``fill``, or map ``kept`` weights.

    Kept weights with another layout are loaded anew. ``stored_as``: the checkpoint's names of a draft head's tensors.
    """
    context = replace(context, memory=kept)
    while True:
        try:
            model = make(context)
            if not context.filled:
                tensors = iterate_weights(
                    checkpoint,
                    context.dtype,
                    context.device if checkpoint.format == "dummy" else None,  # the host reads files
                    raw={stored_as(name) for name in model.weights.raw} if stored_as else model.weights.raw,
                    shapes=_stored_shapes(make, checkpoint, context) if checkpoint.format == "dummy" else None,
                    seed=config.seed,
                    head=stored_as is not None,
                    progress=lambda done, total: progress("loading weights", done, total),
                )
                with torch.inference_mode():
                    fill(model, tensors)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise SetupError(
                f"the weights do not fit into the memory of {context.device}: choose a smaller model"
            ) from error
        if kept is None or not kept.filled or kept.agrees:
            return model
        kept.begin()


def _stored_shapes(
    make: Callable[[LayerContext], M], checkpoint: Checkpoint, context: LayerContext
) -> dict[str, tuple[int, ...]]:
    """Shapes of the whole model's checkpoint."""
    if checkpoint.part is not None:
        return checkpoint.decoder.shapes()
    plain = replace(context, device=torch.device("cpu"), quantized=None, packed=False, shapes_only=True, adapters=None)
    model = make(plain)
    described = Decoder | DraftHead | TransformersDecoder | EncoderDecoder | FramewiseTranscriber
    return model.weights.shapes if isinstance(model, described) else {}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def choose_cpus(config: WorkerConfig, most: int) -> CpuPlan:
    """The CPUs and threads: as ``--threads`` says, else by the processor, at most ``most`` threads."""
    number = config.worker_number
    worker = WorkerPlace(config.cpu_place + number, config.cpu_places, number, config.workers)
    return plan_cpus(read_topology(), config.threads, worker, most)


def hold(plan: CpuPlan) -> CpuPlan:
    """Bind the calling thread, and those that it starts later, to the CPUs of ``plan``.

    Memory that they touch first then lies beside these CPUs. Returns the plan as applied, since a sandbox may forbid
    it.
    """
    if plan.cpus is None:
        return plan
    try:
        os.sched_setaffinity(0, plan.cpus)
    except OSError:
        return replace(plan, cpus=None, is_own=False)
    return plan
