"""Every weight of a checkpoint under transformers' name, one tensor at a time."""

import math
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open

from ..model_config.gguf_config import gguf_architecture
from ..model_config.model_spec import ModelSpec, attention_of
from ..model_config.pooling_config import PoolingConfig
from ..model_config.voxtral_realtime_config import VoxtralRealtimeConfig
from .checkpoint import Checkpoint
from .ct2_file import CT2Variable, read_ct2
from .ct2_whisper import tensors as ct2_tensors
from .dequantize import dequantize
from .errors import CheckpointError
from .gguf_file import GGUFFile, GGUFTensor
from .gguf_tensors import hf_name
from .gguf_types import FLOATS, row_bytes

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


Progress = Callable[[int, int], None]
"""Told the bytes done and the bytes in all, as stored."""

PIECE_ELEMENTS = 1 << 20
"""Decoded at once: bounds the float32 scratch to a few times 4 MiB."""


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
    except those named in ``raw``, whose blocks come as uint8 [rows, bytes of a row]. Dummy ones come in
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
            return _gguf(checkpoint, dtype, device, raw, tell)
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
    for file in checkpoint.files:
        try:
            with safe_open(file, framework="pt", device="cpu") as tensors:
                for name in tensors.offset_keys():
                    tensor = tensors.get_tensor(name)
                    done += tensor.nbytes
                    yield name, tensor.to(device)
                    del tensor
                    tell(done, total)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"Cannot load {file}: {error}.") from error


def _gguf(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, raw: Set[str], tell: Progress
) -> Iterator[tuple[str, torch.Tensor]]:
    (file,) = checkpoint.files
    mixer = attention_of(checkpoint.decoder)
    done, total = 0, checkpoint.total_bytes
    with ExitStack() as stack:
        gguf = stack.enter_context(GGUFFile(file))
        architecture = gguf_architecture(gguf.metadata)
        reader = _TensorReader(file, stack.enter_context(FileIO(file)))
        for tensor in gguf.tensors.values():
            name = hf_name(tensor.name, architecture)
            if name is not None:
                heads = 0
                if architecture.permuted:
                    heads = _permuted_heads(tensor.name, mixer.heads, mixer.kv_heads)
                shift = -1.0 if architecture.gemma and tensor.name.endswith("norm.weight") else 0.0
                if name in raw:
                    yield name, reader.blocks(tensor, heads).to(device)
                else:
                    yield name, reader.read(tensor, dtype, heads, shift).to(device)
            done += tensor.nbytes
            tell(done, total)


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
            stored = _read_piece(file, path, variable.name, variable.offset, variable.nbytes)
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


def _permuted_heads(name: str, heads: int, kv_heads: int) -> int:
    """How many heads the rows of a query or key projection hold; 0 for any other tensor."""
    if ".attn_q." in name:
        return heads
    return kv_heads if ".attn_k." in name else 0


class _TensorReader:
    """Reads stored tensors piece by piece into their final dtype.

    Plain reads rather than a map: a file that is cut short meanwhile is then an error, not a signal
    that ends the process, and no page of it counts as this process's memory.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file

    def read(self, tensor: GGUFTensor, dtype: torch.dtype, heads: int, shift: float) -> torch.Tensor:
        """The tensor in transformers' layout, its shape GGUF's reversed.

        ``heads`` > 0 brings rows that were stored as interleaved rotary pairs back into two halves per
        head; ``shift`` is added to every value.
        """
        columns = tensor.shape[0] if len(tensor.shape) > 1 else 1
        if columns == 1 and tensor.type not in FLOATS:
            columns = tensor.shape[0]
        stored = row_bytes(tensor.type, columns)
        rows = self._rows(tensor, stored, heads)
        out = torch.empty(rows, columns, dtype=dtype)
        target = _in_stored_order(out, heads)
        per_item = rows // heads if heads else 1
        step = max(1, PIECE_ELEMENTS // (columns * per_item))
        for start in range(0, len(target), step):
            items = target[start : start + step]
            piece = self._piece(tensor, start * per_item * stored, len(items) * per_item * stored)
            values = dequantize(piece.view(-1, stored), tensor.type)
            items.copy_((values + shift if shift else values).view(items.shape))
        return out.view(tensor.shape[::-1])

    def blocks(self, tensor: GGUFTensor, heads: int) -> torch.Tensor:
        """The quantised blocks of a matrix as stored, uint8 [rows, bytes of a row], rows as in :meth:`read`."""
        stored = row_bytes(tensor.type, tensor.shape[0])
        rows = self._rows(tensor, stored, heads)
        blocks = self._piece(tensor, 0, rows * stored).view(rows, stored)
        if not heads:
            return blocks
        out = torch.empty_like(blocks)
        target = _in_stored_order(out, heads)
        target.copy_(blocks.view(target.shape))
        return out

    def _rows(self, tensor: GGUFTensor, stored: int, heads: int) -> int:
        rows = tensor.nbytes // stored
        if heads and rows % (2 * heads):
            raise CheckpointError(
                f"Cannot load {self._path}: {tensor.name!r} has {rows} rows, expected a multiple of {2 * heads}."
            )
        return rows

    def _piece(self, tensor: GGUFTensor, start: int, count: int) -> torch.Tensor:
        """Stored bytes [start, start + count) of a tensor, uint8 [count]."""
        return _read_piece(self._file, self._path, tensor.name, tensor.offset + start, count)


def _read_piece(file: FileIO, path: Path, name: str, offset: int, count: int) -> torch.Tensor:
    """Bytes [offset, offset + count) of a file, uint8 [count]; ``name`` is what lies there."""
    buffer = bytearray(count)
    view = memoryview(buffer)
    try:
        file.seek(offset)
        filled = 0
        while filled < count:
            got = file.readinto(view[filled:])
            if not got:
                raise CheckpointError(f"Cannot load {path}: it ends within {name!r}; fetch it again.")
            filled += got
    except OSError as error:
        raise CheckpointError(f"Cannot load {path}: {error.strerror or error}.") from error
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _in_stored_order(out: torch.Tensor, heads: int) -> torch.Tensor:
    """A view of the rows of ``out`` as the file orders them: row r of a head at 2r, row r + half of it at 2r + 1."""
    return out.view(heads, 2, -1, out.shape[1]).transpose(1, 2) if heads else out.unsqueeze(1)
