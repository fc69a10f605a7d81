"""Every weight of a checkpoint under transformers' name, one tensor at a time."""

import math
from collections.abc import Callable, Iterator, Mapping, Set
from io import FileIO
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open

from ..model_config.hf_text_part import text_name
from ..model_config.model_spec import ModelSpec
from ..model_config.pooling_config import PoolingConfig
from ..model_config.voxtral_realtime_config import VoxtralRealtimeConfig
from .checkpoint import Checkpoint
from .ct2_file import CT2Variable, read_ct2
from .ct2_whisper import tensors as ct2_tensors
from .errors import CheckpointError
from .gguf_weights import gguf_weights
from .pieces import Progress, read_piece

POOL_ELEMENTS = 1_000_003
"""Prime, so that no matrix repeats the pool row by row."""

STANDARD_DEVIATION = 0.02


def dummy_weights(
    shapes: Mapping[str, tuple[int, ...]],
    norm: float,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of every weight: small normal values, and ``norm`` in norms, which pass their input on.

    A tensor depends on ``seed`` and its name alone. The values are cut from one pool of random
    numbers, which costs a copy where drawing billions would cost minutes.
    """
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(POOL_ELEMENTS, generator=generator).mul_(STANDARD_DEVIATION).to(device, dtype)
    total = sum(map(math.prod, shapes.values())) * dtype.itemsize
    done = 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        if name.endswith("norm.weight"):
            tensor = torch.full(shape, norm, dtype=dtype, device=device)
        else:
            tensor = _cut(pool, crc32(name.encode()) % POOL_ELEMENTS, count).view(shape)
        yield name, tensor
        done += count * dtype.itemsize
        progress(done, total)


def _cut(pool: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """A copy of ``count`` values from ``start`` on, beginning the pool again where it ends."""
    if start + count <= POOL_ELEMENTS:
        return pool[start : start + count].clone()
    return pool.roll(-start).repeat(-(-count // POOL_ELEMENTS))[:count]


def iterate_weights(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    raw: Set[str] = frozenset(),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), file by file in stored order.

    Tensors of safetensors files come as they are stored, as views of the mapped file: copy what is to be
    written or to outlive the file. GGUF's come in ``dtype``, expanded piecewise where they are quantised,
    except those named in ``raw``, whose blocks come as uint8 [rows, bytes of a row], and short ones that are computed
    anew from what is stored, which are float32. Dummy ones come in
    ``dtype``, of the ``shapes`` that a model with plain weights has, chosen by ``seed``. Beside the tensor in
    hand no other is kept. Names the model does not know are yielded too. Raises :class:`CheckpointError` when
    a file cannot be read.
    """
    device = device or torch.device("cpu")
    tell = progress or (lambda done, total: None)
    match checkpoint.format:
        case "safetensors":
            return _safetensors(checkpoint, device, tell)
        case "gguf":
            return gguf_weights(checkpoint, dtype, device, raw, tell)
        case "ct2":
            return _ct2(checkpoint, dtype, device, tell)
        case "dummy":
            config = checkpoint.config
            if isinstance(config, VoxtralRealtimeConfig | PoolingConfig):
                raise CheckpointError(f"There are no dummy weights for a {config.architecture}.")
            norm = 0.0 if isinstance(config, ModelSpec) and config.norm_plus_one else 1.0
            assert shapes is not None, "dummy weights need their shapes"
            return dummy_weights(shapes, norm, dtype, device, seed, tell)


def _safetensors(checkpoint: Checkpoint, device: torch.device, tell: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    done, total = 0, checkpoint.total_bytes
    part = isinstance(checkpoint.config, ModelSpec) and checkpoint.config.text_part
    for file in checkpoint.files:
        try:
            with safe_open(file, framework="pt", device="cpu") as tensors:
                for stored in tensors.offset_keys():
                    if (name := text_name(stored) if part else stored) is None:
                        continue
                    tensor = tensors.get_tensor(stored)
                    done += tensor.nbytes
                    yield name, tensor.to(device)
                    del tensor
                    tell(done, total)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"Cannot load {file}: {error}.") from error


def tower_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of what sees or hears, under the names that are stored, as views of the mapped files. Raises
    :class:`CheckpointError` when a file cannot be read."""
    for file in () if checkpoint.tower is None else checkpoint.tower.files:
        try:
            with safe_open(file, framework="pt", device="cpu") as tensors:
                for stored in tensors.offset_keys():
                    if text_name(stored) is None:
                        yield stored, tensors.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"Cannot load {file}: {error}.") from error


_CT2_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int16": torch.int16,
}


def _ct2(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, tell: Progress
) -> Iterator[tuple[str, torch.Tensor]]:
    """Plain variables as they are stored, quantised ones (value · 1 / scale) in ``dtype``."""
    (path,) = checkpoint.files
    done, total = 0, checkpoint.total_bytes
    with FileIO(path) as file:

        def read(variable: CT2Variable) -> torch.Tensor:
            stored = read_piece(file, path, variable.name, variable.offset, variable.nbytes)
            return stored.view(_CT2_DTYPES[variable.dtype]).view(variable.shape)

        for variable, scale, names in ct2_tensors(read_ct2(path)):
            values = read(variable)
            if scale is not None:
                rows = read(scale).reshape(-1, *(1 for _ in variable.shape[1:]))
                values = (values.float() / rows).to(dtype)
            for name, part in zip(names, values.chunk(len(names)), strict=True):
                yield name, part.to(device)
            done += variable.nbytes
            tell(done, total)
