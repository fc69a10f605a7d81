"""Reads the weights of a GGUF file under transformers' names."""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final

import torch

from ..model_config.gguf.config import gguf_architecture
from ..model_config.hf.draft_head import mtp_prefix
from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.model import ModelSpec
from .checkpoint import Checkpoint
from .errors import CheckpointError
from .gguf.dequantize import dequantize
from .gguf.file import GGUFFile, GGUFTensor
from .gguf.tensors import Part, stored_part
from .gguf.types import FLOATS, row_bytes
from .pieces import Progress, read_piece

PIECE_ELEMENTS = 1 << 20
"""Elements decoded at once; bounds the float32 scratch memory to a few times 4 MiB."""
_QUERY_OR_KEY: Final = re.compile(r"blk\.(\d{1,9})\.attn_([qk])\..+")


def gguf_weights(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, raw: Set[str], tell: Progress, *, head: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) in stored order; see :func:`.weights.iterate_weights`."""
    spec = checkpoint.decoder
    of_head = mtp_prefix(spec)
    done, total = 0, checkpoint.total_bytes
    with ExitStack() as stack:
        gguf = stack.enter_context(GGUFFile(checkpoint.files[0]))
        architecture = gguf_architecture(gguf.metadata)
        readers = {file: TensorReader(file, stack.enter_context(FileIO(file))) for file in gguf.files}
        for tensor in gguf.tensors.values():
            part, reader = stored_part(tensor.name, spec), readers[tensor.file]
            if part.names and part.names[0].startswith(of_head) == head:
                heads = permuted_heads(tensor.name, spec) if architecture.permuted else 0
                if part.names[0] in raw:
                    stored = reader.blocks(tensor, heads)
                else:
                    plus_one = architecture.plus_one and tensor.name.endswith("norm.weight")
                    shift = -1.0 if plus_one and not tensor.name.endswith("ssm_norm.weight") else 0.0
                    stored = reader.read(tensor, dtype if part.by_rows else torch.float32, heads, shift)
                try:
                    restored = _restored(part, stored)
                except RuntimeError as error:  # torch's error for a shape that cannot be divided so
                    raise CheckpointError(
                        f"Cannot load {tensor.file}: {tensor.name!r} has shape {tensor.shape[::-1]}, which does not "
                        "divide among the heads that its metadata tells."
                    ) from error
                for name, found in zip(part.names, restored, strict=True):
                    yield name, found.to(device)
            done += tensor.nbytes
            tell(done, total)


def _restored(part: Part, stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The transformers tensors in a stored tensor."""
    steps: list[Restore] = [_RESTORES[part.change]] if part.change in _RESTORES else []
    if part.change == "halves_by_head":
        steps.append(partial(_halves_by_head, heads=part.heads))
    if part.change == "stacked":
        steps.append(partial(_unstacked, count=len(part.names)))
    if part.groups:
        steps.append(partial(_grouped, first=part.first, groups=part.groups, heads=part.heads))
    found: tuple[torch.Tensor, ...] = (stored,)
    for step in steps:  # all but the last make one tensor
        found = step(found[0])
    return found


def permuted_heads(name: str, spec: ModelSpec) -> int:
    """Number of heads in the rows of a query or key projection; 0 for other tensors."""
    found = _QUERY_OR_KEY.fullmatch(name)
    if found is None or int(found[1]) >= len(spec.layers):
        return 0
    mixer = spec.layers[int(found[1])].mixer
    if not isinstance(mixer, AttentionSpec):
        return 0
    return mixer.heads if found[2] == "q" else mixer.kv_heads


class TensorReader:
    """Reads stored tensors piece by piece into their final dtype.

    Uses plain reads, not a memory map: a file truncated meanwhile causes an error, not a signal that ends the process,
    and no page of it counts as this process's memory.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file
        self._room = bytearray()

    def read(self, tensor: GGUFTensor, dtype: torch.dtype, heads: int, shift: float) -> torch.Tensor:
        """The tensor in transformers' layout; its shape is GGUF's reversed.

        ``heads`` > 0: rows are stored as interleaved rotary pairs, and are reordered to two halves a head. ``shift``:
        added to every value.
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
        """The quantised blocks of a matrix as stored, uint8 [rows, bytes of a row], rows as in :meth:`read`; of all
        experts' [experts, rows, bytes of a row]. Good until the next tensor is read."""
        stored = row_bytes(tensor.type, tensor.shape[0])
        rows = self._rows(tensor, stored, heads)
        blocks = self._piece(tensor, 0, rows * stored).view(rows, stored)
        if not heads:
            return blocks.view(*tensor.shape[:0:-1], stored)
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
        """Bytes [start, start + count) of a stored tensor, uint8 [count], good until the next piece is read."""
        if len(self._room) < count:
            self._room = bytearray(count)
        return read_piece(self._file, self._path, tensor.name, tensor.offset + start, count, self._room)


def _in_stored_order(out: torch.Tensor, heads: int) -> torch.Tensor:
    """A view of ``out`` with rows in the file's order: row r of a head at 2r, row r + half of it at 2r + 1."""
    return out.view(heads, 2, -1, out.shape[1]).transpose(1, 2) if heads else out.unsqueeze(1)


# Undo the changes of llama.cpp's converter. Each function takes a stored tensor in transformers' order of dimensions:
# plain values, or, if it only moves rows, rows of blocks, uint8 [rows, bytes].

Restore = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
"""A stored tensor → the transformers tensors in it."""


def _of_logs(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """-exp(x) → x; a matrix of one column becomes a vector."""
    found = torch.log(-stored.float())
    return (found.flatten() if found.shape[-1] == 1 else found,)


def _of_logs_by_head(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """-exp(x) → x as [1, 1, heads, 1]; some files leave out trailing dimensions of 1."""
    return (_of_logs(stored)[0].view(1, 1, -1, 1),)


def _vector(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A matrix that stands for a vector → that vector."""
    return (stored.flatten(),)


def _row(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A vector → a matrix of one row."""
    return (stored.reshape(1, -1),)


def _convolution(stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[channels, width], possibly with further dimensions of 1 → [channels, 1, width]"""
    return (stored.reshape(-1, 1, stored.shape[-1]),)


def _halves_by_head(stored: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Rows of each head, half of them of the first matrix, half of the second → both matrices."""
    by_head = stored.view(heads, 2, -1, *stored.shape[1:])
    return by_head[:, 0].flatten(0, 1), by_head[:, 1].flatten(0, 1)


def _unstacked(stored: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """[count, outputs, inputs] → so many matrices; of blocks, their rows one matrix after another."""
    return stored.reshape(count, -1, stored.shape[-1]).unbind()


def _grouped(stored: torch.Tensor, first: int, groups: int, heads: int) -> tuple[torch.Tensor, ...]:
    """Rows of ``heads`` heads from row ``first`` on, the first head of every group, then the second → group by
    group."""
    kept, moved = stored[:first], stored[first:]
    by_head = moved.view(heads // groups, groups, -1, *moved.shape[1:])
    return (torch.cat((kept, by_head.transpose(0, 1).flatten(0, 2))),)


_RESTORES: Final[Mapping[str, Restore]] = {
    "log": _of_logs,
    "log_by_head": _of_logs_by_head,
    "vector": _vector,
    "row": _row,
    "convolution": _convolution,
}
"""Inverse functions by the converter's change."""
