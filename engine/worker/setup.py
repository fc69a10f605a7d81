"""From a worker's configuration to a model that has completed a real step."""

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from stentor import kernels
from stentor.kernels import native
from stentor.protocols.actors import MemoryLine, WorkerReady
from stentor.protocols.config import DType, WorkerConfig
from stentor.protocols.sampling import SamplingParams
from stentor.protocols.steps import NewRow, RowStep, StepPlan

from ..layers.attention import LayerCache
from ..layers.linear import Placement
from ..loading.checkpoint import Checkpoint, open_checkpoint
from ..loading.weights import iterate_weights
from ..models.config import DecoderConfig
from ..models.decoder import Decoder
from .cores import granted_cores
from .memory import GIB, default_kv_bytes, kv_block_bytes, resident_bytes
from .runner import ModelRunner

ProgressCallback = Callable[[str, int, int], None]
"""(phase, done, total); bytes while weights load, steps while warming up."""

_WARMUP_TOKENS = 16
_BLOCK_MULTIPLE = 16
"""Keys of a block fill whole vectors."""


class SetupError(Exception):
    """A worker cannot start as configured; the message is for the operator."""


@dataclass(frozen=True)
class Setup:
    runner: ModelRunner
    ready: WorkerReady


def set_up(config: WorkerConfig, progress: ProgressCallback) -> Setup:
    """Loads the model, sizes the KV cache and completes a real step.

    Raises :class:`SetupError` and the loader's errors, each with one clear line.
    """
    device = choose_device(config.device)
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), granted_cores()))
    checkpoint = open_checkpoint(Path(config.model), config.load_format)
    dtype = choose_dtype(config.dtype, device, checkpoint.dtype, batch_invariant=config.batch_invariant)
    notes = []
    if device.type == "cpu":
        native.prepare(progress=lambda done, total: progress("compiling CPU kernels", done, total))
    if device.type == "cpu" and (reason := native.unavailable_reason()) is not None:
        notes.append(f"CPU kernels run in plain torch, several times slower: {reason}")
    max_model_len, num_blocks = size_cache(config, checkpoint.config, device, dtype)
    if max_model_len < (config.max_model_len or checkpoint.config.max_position):
        notes.append(
            f"the context is cut from {checkpoint.config.max_position} tokens to the {max_model_len} that the KV cache "
            "holds; --kv-cache-memory gives it more"
        )
    kv_bytes = num_blocks * kv_block_bytes(checkpoint.config, config.block_size, dtype)
    try:
        place = Placement(device, dtype, config.batch_invariant)
        model = load_model(checkpoint, config, place, max_model_len, progress)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise SetupError(f"the weights do not fit into the memory of {device}: choose a smaller model") from error
    try:
        caches = allocate_caches(checkpoint.config, num_blocks, config.block_size, device, dtype)
    except (OSError, MemoryError, torch.OutOfMemoryError) as error:
        raise SetupError(
            f"{device} has no room for {kv_bytes / GIB:.2f} GiB of KV cache: lower --kv-cache-memory"
        ) from error
    runner = ModelRunner(
        model,
        caches,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=device,
    )
    _complete_a_step(runner, checkpoint.config.vocab_size, config.block_size, max_model_len, progress)
    if (expanded := checkpoint.expansion_note(_name(dtype))) is not None:
        notes.append(expanded)
    lazily = "; taken as it fills" if device.type == "cpu" else ""
    memory = [
        MemoryLine("weights", model.weights.total_bytes, f"{_name(dtype)} on {device}"),
        MemoryLine("KV cache", kv_bytes, f"{num_blocks} blocks of {config.block_size} tokens{lazily}"),
        MemoryLine("worker process", resident_bytes(), "resident now: weights, code, KV blocks touched so far"),
    ]
    return Setup(runner, WorkerReady(num_blocks, max_model_len, memory, notes))


def choose_device(wanted: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise SetupError("--device cuda: torch sees no CUDA device here; use --device cpu, or check the driver")
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")


def choose_dtype(wanted: DType, device: torch.device, stored: str, *, batch_invariant: bool) -> torch.dtype:
    """The compute dtype: as asked, else bfloat16 where the machine multiplies it, else float32."""
    if batch_invariant:
        if wanted not in ("auto", "float32") or device.type != "cpu":
            raise SetupError("--batch-invariant holds on the CPU in float32: use --device cpu --dtype float32")
        return torch.float32
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted]
    if device.type == "cuda":
        return torch.float16 if stored == "float16" else torch.bfloat16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def size_cache(config: WorkerConfig, model: DecoderConfig, device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
    """Longest sequence and number of KV blocks.

    A context that the operator named must fit; the model's own is cut to what fits.
    """
    if config.max_model_len is not None and config.max_model_len > model.max_position:
        raise SetupError(
            f"--max-model-len {config.max_model_len}: {model.architecture} was made for at most {model.max_position}"
        )
    if config.block_size % _BLOCK_MULTIPLE:
        raise SetupError(f"--block-size {config.block_size}: expected a multiple of {_BLOCK_MULTIPLE}")
    block_bytes = kv_block_bytes(model, config.block_size, dtype)
    budget = config.kv_cache_memory
    if budget is None:
        budget = default_kv_bytes(device, weights_bytes(model, dtype))
    num_blocks = budget // block_bytes
    max_model_len = min(config.max_model_len or model.max_position, num_blocks * config.block_size)
    if max_model_len < (config.max_model_len or 1):
        needed = -(-(config.max_model_len or 1) // config.block_size) * block_bytes
        raise SetupError(
            f"{budget / GIB:.2f} GiB of KV cache hold {num_blocks * config.block_size} tokens, one sequence needs "
            f"{needed / GIB:.2f} GiB: raise --kv-cache-memory or lower --max-model-len"
        )
    return max_model_len, num_blocks


def weights_bytes(model: DecoderConfig, dtype: torch.dtype) -> int:
    """What the model's tensors will take, without making them."""
    return Decoder(model, Placement(torch.device("meta"), dtype, False), max_model_len=1).weights.total_bytes


def load_model(
    checkpoint: Checkpoint, config: WorkerConfig, place: Placement, max_model_len: int, progress: ProgressCallback
) -> Decoder:
    model = Decoder(checkpoint.config, place, max_model_len)
    tensors = iterate_weights(
        checkpoint, place.dtype, seed=config.seed, progress=lambda done, total: progress("loading weights", done, total)
    )
    with torch.inference_mode():
        model.weights.load(tensors, ignore=model.ignored_weights)
    return model


def allocate_caches(
    config: DecoderConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> list[LayerCache]:
    """K and V of every layer, zeroed."""
    k_shape, v_shape = kernels.kv_cache_shape(num_blocks, config.num_kv_heads, config.head_dim, block_size)
    return [(_zeros(k_shape, dtype, device), _zeros(v_shape, dtype, device)) for _ in range(config.num_layers)]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page; fresh pages of the kernel are zero and cost nothing until they are used
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def _complete_a_step(
    runner: ModelRunner, vocab_size: int, block_size: int, max_model_len: int, progress: ProgressCallback
) -> None:
    """Prefills a few tokens and decodes one, so that readiness means a model that ran."""
    length = max(1, min(_WARMUP_TOKENS, block_size - 1, max_model_len - 1))
    prompt = [token % vocab_size for token in range(length)]
    row = NewRow(0, prompt, length, SamplingParams(max_tokens=2, temperature=0.0), 0, [0])
    steps = [RowStep(0, 0, length, [], True)]
    if length + 1 <= max_model_len:
        steps.append(RowStep(0, length, 1, [], True))
    for number, step in enumerate(steps):
        progress("warming up", number, len(steps))
        runner.step(StepPlan(0, number, [], [row] if number == 0 else [], [step]))
    runner.release([0])
    progress("warming up", len(steps), len(steps))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
