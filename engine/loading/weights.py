"""Reads the weights of a checkpoint under transformers' names, one tensor at a time."""

import itertools
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Final
from zlib import crc32

import torch

from ..model_config.encoders.pooling import PoolingConfig
from ..model_config.gguf.mmproj_file import ProjectorFile
from ..model_config.hf.text_names import RETRIEVER, is_of_tower, text_name
from ..model_config.spec.model import ModelSpec
from ..model_config.speech.streamed import StreamedConfig
from ..model_config.towers.vision_spec import VisionSpec
from .checkpoint import Checkpoint
from .ct2_file import CT2Variable, read_ct2
from .ct2_whisper import tensors as ct2_tensors
from .errors import CheckpointError
from .folded_tokens import folded_tokens
from .gguf.file import GGUFFile
from .gguf.mmproj_modules import ModuleParts
from .gguf.mmproj_tensors import FIRST_FRAME, IGNORED, SECOND_FRAME, TowerParts
from .gguf.types import GGMLType
from .gguf_weights import TensorReader, gguf_weights
from .module_weights import module_weights
from .pieces import Progress, read_piece
from .safetensors_index import StoredTensor
from .weight_files import tensors_of

POOL_ELEMENTS = 1_000_003
"""A prime, so that no matrix repeats the pool row by row."""

STANDARD_DEVIATION = 0.02


def dummy_weights(
    shapes: Mapping[str, tuple[int, ...]],
    norm: float,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of every weight: small normal values, and ``norm`` in norms, which then pass on their input.

    A tensor depends only on ``seed`` and its name. Values are cut from one pool of random numbers: a copy instead of
    minutes for generating billions.
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
    """A copy of ``count`` values from ``start`` on, cyclically."""
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
    head: bool = False,
    progress: Progress | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), file by file in stored order.

    Only the current tensor is held. Names that the model does not know are yielded too. Raises :class:`CheckpointError`
    if a file cannot be read. The form depends on the format:

    - safetensors and torch: as stored, as views of the mapped file. Copy what is to be written or to outlive it.
    - GGUF: in ``dtype``, dequantised piecewise. Those named in ``raw`` are blocks, uint8 [rows, bytes of a row], good
      until the next tensor. Short tensors that are computed from stored ones are float32. Either the ``head`` for
      multi-token prediction is read, or all else.
    - dummy: in ``dtype``, of the ``shapes`` of plain weights, values by ``seed``.
    """
    device = device or torch.device("cpu")
    tell = progress or (lambda done, total: None)
    match checkpoint.format:
        case "safetensors" | "pytorch":
            return itertools.chain(_as_stored(checkpoint, device, tell), _token_numbers(checkpoint))
        case "gguf":
            return gguf_weights(checkpoint, dtype, device, raw, tell, head=head)
        case "ct2":
            return _ct2(checkpoint, dtype, device, tell)
        case "dummy":
            config = checkpoint.config
            if isinstance(config, StreamedConfig | PoolingConfig):
                raise CheckpointError(f"There are no dummy weights for a {config.architecture}.")
            norm = 0.0 if isinstance(config, ModelSpec) and config.norm_plus_one else 1.0
            assert shapes is not None, "dummy weights need their shapes"
            return dummy_weights(shapes, norm, dtype, device, seed, tell)


def _as_stored(checkpoint: Checkpoint, device: torch.device, tell: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    done, total = 0, checkpoint.total_bytes
    part = checkpoint.is_text_part
    for file in checkpoint.files:
        mapped = _MappedFile(file)
        before = -1
        for stored in sorted(tensors_of(file), key=lambda tensor: tensor.offset):
            if (name := text_name(stored.name) if part else stored.name) is not None:
                yield name, mapped.tensor(stored).to(device)
                if stored.offset != before:  # tied tensors are stored once
                    done += stored.nbytes
                    tell(done, total)
                before = stored.offset
            mapped.let_go(stored.offset + stored.nbytes)


def _token_numbers(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    """The numbers of tokens in n-grams, int64 [vocabulary], of each layer whose n-grams are of alike tokens. Raises
    :class:`CheckpointError`."""
    spec = checkpoint.config
    if not isinstance(spec, ModelSpec):
        return
    layers = ((spec.layer_prefix(at), each) for at, layer in enumerate(spec.layers) if (each := layer.ngrams))
    numbers: torch.Tensor | None = None
    for prefix, ngrams in layers:
        if not ngrams.folded:
            continue
        if numbers is None:
            found = folded_tokens(checkpoint.folder, ngrams.vocab_size, ngrams.folded, ngrams.eos)
            numbers = torch.tensor(found)
        yield f"{prefix}.{ngrams.numbers}", numbers


def tensors_from(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of one file, as :func:`iterate_weights`. Raises :class:`CheckpointError`."""
    mapped = _MappedFile(file)
    for stored in tensors_of(file):
        yield stored.name, mapped.tensor(stored)


class _MappedFile:
    """A mapped file of tensors that keeps few pages in this process's memory."""

    _STEP = 1 << 16
    """Small: scales are stored together behind the weights, and about thirty times as many bytes are read for each."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises :class:`CheckpointError`."""
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"Cannot load {path}: {error}.") from error
        self._left = 0

    def tensor(self, stored: StoredTensor) -> torch.Tensor:
        """A view of the map. Raises :class:`CheckpointError` for an invalid tensor."""
        dtype = _STORED_DTYPES.get(stored.dtype)
        count = math.prod(stored.shape)
        if dtype is None or count * dtype.itemsize != stored.nbytes:
            raise CheckpointError(
                f"Cannot load {stored.file}: {stored.name!r} has {stored.nbytes} bytes for {stored.shape} of "
                f"{stored.dtype}; fetch it again."
            )
        if not count:
            return torch.empty(stored.shape, dtype=dtype)
        strides = stored.strides
        last = sum((n - 1) * step for n, step in zip(stored.shape, strides, strict=True)) if strides else count - 1
        spread = (last + 1) * dtype.itemsize
        values = torch.frombuffer(self._bytes, dtype=torch.uint8, count=spread, offset=stored.offset)
        numbers = (values if stored.offset % dtype.itemsize == 0 else values.clone()).view(dtype)
        return numbers.as_strided(stored.shape, strides) if strides else numbers.view(stored.shape)

    def let_go(self, end: int) -> None:
        """Release the pages before byte ``end``, now and then; they are read again if still needed."""
        if end - self._left >= self._STEP:
            self._left = end // mmap.PAGESIZE * mmap.PAGESIZE
            self._bytes.madvise(mmap.MADV_DONTNEED, 0, self._left)


_STORED_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By :class:`StoredTensor`'s names."""


def tower_weights(checkpoint: Checkpoint, raw: Set[str] = frozenset()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of a media encoder under stored names, as views of the mapped files.

    From a projector file: under the tower's own names, with the blocks of those in ``raw`` as stored. Raises
    :class:`CheckpointError` if a file cannot be read.
    """
    tower = checkpoint.tower
    if tower is not None and (projector := tower.projector) is not None:
        if isinstance(projector, ModuleParts):
            yield from _module_weights(tower.files[0], projector)
        else:
            yield from mmproj_weights(tower.files[0], projector, raw)
        return
    for file in () if tower is None else tower.files:
        mapped = _MappedFile(file)
        for stored in sorted(tensors_of(file), key=lambda tensor: tensor.offset):
            if is_of_tower(stored.name):
                yield stored.name.removeprefix(RETRIEVER), mapped.tensor(stored)


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
    """Plain variables as stored, quantised ones (value · 1 / scale) in ``dtype``."""
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


_HALVES: Final = {GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}
"""Types kept as stored."""


def mmproj_weights(file: Path, spec: VisionSpec, raw: Set[str] = frozenset()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), dequantised except those in ``raw``, which are blocks, uint8 [rows, bytes of a row].

    Raises :class:`CheckpointError`.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(GGUFFile(file))
        reader = TensorReader(file, stack.enter_context(FileIO(file)))
        shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
        parts = TowerParts(spec, swapped=ProjectorFile(opened.metadata, shapes).swapped)
        for name, tensor in opened.tensors.items():
            if name in IGNORED or name == SECOND_FRAME:
                continue
            part = parts.of(name)
            if part.name in raw:
                blocks = reader.blocks(tensor, part.heads)
                yield part.name, _alternating(blocks, part.apart) if part.apart else blocks
                continue
            dtype = _HALVES.get(tensor.type, torch.float32)
            values = reader.read(tensor, dtype, part.heads, 0.0)
            if name == FIRST_FRAME and spec.frames > 1:
                if SECOND_FRAME not in opened.tensors:
                    raise CheckpointError(f"Cannot load {file}: the tensor {SECOND_FRAME} is missing.")
                second = reader.read(opened.tensors[SECOND_FRAME], dtype, 0, 0.0)
                values = torch.stack((values, second), dim=2)  # [hidden, channels, frames, patch, patch]
            if part.apart:
                values = _alternating(values, part.apart)
            if name == FIRST_FRAME and spec.source == "shaped":
                values = values.permute(0, 2, 3, 1)  # processors make the channels of a pixel adjacent
            yield part.name, values


def _alternating(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows stored as :attr:`.gguf.mmproj_tensors.TowerPart.apart` says, so that pairs alternate between column
    and row."""
    both, values = rows.tensor_split((2 * len(rows) // 3,))
    pairs = both.unflatten(0, (2 * heads, 2, -1, 2))  # heads of queries, then of keys
    return torch.cat((pairs.transpose(1, 2).reshape(both.shape), values))


def _module_weights(file: Path, parts: ModuleParts) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), dequantised. Raises :class:`CheckpointError`."""
    with ExitStack() as stack:
        opened = stack.enter_context(GGUFFile(file))
        reader = TensorReader(file, stack.enter_context(FileIO(file)))

        def read(name: str) -> torch.Tensor:
            if (tensor := opened.tensors.get(name)) is None:
                raise CheckpointError(f"Cannot load {file}: the tensor {name} is missing.")
            return reader.read(tensor, _HALVES.get(tensor.type, torch.float32), 0, 0.0)

        yield from module_weights(parts, opened.tensors, read)
