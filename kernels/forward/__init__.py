"""A model's forward pass on a CPU with one call a step: a program of instructions that all threads walk through."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..guards import describe
from ..kv_cache import native_cache_obstacle
from ..native import NativeFunction, library, threads, unavailable_reason
from ..variants import Choice, Variant, settle
from . import reference
from .program import NONE, Form, InstructionStruct, Program, form_of

__all__ = ["NONE", "Form", "Forward", "Program", "choose", "form_of"]

_P, _I = ctypes.c_void_p, ctypes.c_int64
_RUN = NativeFunction("stentor_run_program", _P, _I, _P, _P, _P, _I, restype=_I)
_FAULTS = {
    1: "a token id outside the vocabulary",
    2: "a position outside the rotary table",
    3: "a slot outside the cache",
    4: "lengths or a block table that lead outside the batch or the cache",
}
_LEAST_ROWS = 16


class _BufferStruct(ctypes.Structure):
    """``Buffer`` of program.h."""

    _fields_ = (("rows", _P), ("stride", _I))


class _BatchStruct(ctypes.Structure):
    """``Batch`` of program.h."""

    _fields_ = (
        ("tokens", _I),
        *((name, _P) for name in ("ids", "positions", "slots")),
        ("sequences", _I),
        *((name, _P) for name in ("query_start", "seq_lens", "tables")),
        ("table_width", _I),
    )


def choose(variant: Choice = "auto") -> Variant:
    """The variant that :class:`Forward` runs. Raises ValueError where one is asked for that cannot run."""
    return settle(variant, native=None if library() is not None else unavailable_reason() or "there is no library")


class Forward:
    """A program with its caches and its working memory, which grows to the longest step and is kept."""

    def __init__(
        self, program: Program, caches: Sequence[tuple[Tensor, Tensor]] = (), *, variant: Choice = "auto"
    ) -> None:
        """``caches``: K and V of each layer, float32 or bfloat16 on the CPU (:func:`stentor.kernels.make_kv_cache`).

        Raises:
            ValueError: caches that the variant cannot take, or a variant that cannot run.
        """
        self.program = program
        self.variant = choose(variant)
        self._caches = list(caches)
        for k_cache, _ in self._caches:
            if (obstacle := native_cache_obstacle(k_cache, k_cache.dtype)) is not None:
                raise ValueError(f"forward: {obstacle}")
            if k_cache.dtype not in (torch.float32, torch.bfloat16):
                raise ValueError(f"forward: caches are float32 or bfloat16, not {describe(k_cache)}")
        self._structs: ctypes.Array[InstructionStruct] = program.structs(self._caches)
        self._rows = 0
        self._buffers: list[Tensor] = []
        self._buffer_structs = (_BufferStruct * 0)()
        self._prepared = torch.empty(0, dtype=torch.uint8)
        self._prepared_at = 0

    def buffer(self, number: int, rows: int) -> Tensor:
        """The first ``rows`` rows of a buffer, float32 [rows, width]: good until the next run that is longer."""
        self._reserve(rows)
        return self._buffers[number][:rows]

    def run(
        self,
        rows: int,
        ids: Tensor | None = None,
        positions: Tensor | None = None,
        batch: AttentionBatch | None = None,
    ) -> None:
        """Runs the program over ``rows`` rows.

        Args:
            rows: how many; one a token where the program reads tokens.
            ids: int64 [rows], contiguous, where the program embeds.
            positions: int64 [rows], contiguous, where it rotates.
            batch: the sequences of the rows, where it rotates or attends.

        Raises:
            IndexError: an id, a position, a slot or a block table that leads outside; nothing was written then.
        """
        if rows == 0:
            return
        self._reserve(rows)
        if self.variant == "reference":
            buffers = [buffer[:rows] for buffer in self._buffers]
            reference.run_program(self.program, buffers, self._caches, ids, positions, batch)
            return
        struct = _BatchStruct(tokens=rows)
        for name, tensor in (("ids", ids), ("positions", positions)):
            if tensor is not None:
                if tensor.shape != (rows,) or tensor.dtype != torch.int64 or not tensor.is_contiguous():
                    raise ValueError(f"forward: {name} {describe(tensor)} must be contiguous int64 [{rows}]")
                setattr(struct, name, tensor.data_ptr())
        if batch is not None:
            if batch.num_tokens != rows:
                raise ValueError(f"forward: the batch has {batch.num_tokens} tokens, expected {rows}")
            struct.slots = batch.slots.data_ptr()
            struct.sequences = batch.num_sequences
            struct.query_start = batch.query_start.data_ptr()
            struct.seq_lens = batch.seq_lens.data_ptr()
            struct.tables = batch.block_tables.data_ptr()
            struct.table_width = batch.block_tables.shape[1]
        function = _RUN.bind()
        assert function is not None
        fault = function(
            self._structs, len(self._structs), self._buffer_structs, self._prepared_at, ctypes.byref(struct), threads()
        )
        if fault:
            raise IndexError(f"forward: the step has {_FAULTS[fault]}")

    def _reserve(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = max(_LEAST_ROWS, 1 << (rows - 1).bit_length())
        self._buffers = [torch.empty(self._rows, width) for width in self.program.widths]
        self._buffer_structs = (_BufferStruct * len(self._buffers))(
            *(_BufferStruct(buffer.data_ptr(), buffer.stride(0)) for buffer in self._buffers)
        )
        self._prepared = torch.empty(self._rows * self.program.prepared_bytes + 64, dtype=torch.uint8)
        self._prepared_at = -(-self._prepared.data_ptr() // 64) * 64
