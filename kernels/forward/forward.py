"""A model's forward pass on a CPU with one native call per step: all threads run one program of instructions."""

import ctypes
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..attention import AttentionBatch
from ..guards import describe
from ..kv_cache import check_caches, check_scales, native_cache_unsupported_reason
from ..low_rank import AdapterRows, RowsStruct
from ..native import NativeFunction, library, threads, unavailable_reason
from ..native.memory import empty_huge
from ..variants import Choice, Variant, select_variant
from . import reference
from .instruction import CACHE_TYPES, NONE, Instruction, InstructionStruct
from .program import Program

_P, _I = ctypes.c_void_p, ctypes.c_int64
_RUN = NativeFunction("stentor_run_program", _P, _P, _I, restype=_I)
_RUN_STEP = NativeFunction("stentor_run_step", _P, _P, _I, _I, _I, _I, _P, _P, _I, _I, _I, _I, _P, _I, restype=_I)
_EXPANDS = NativeFunction("stentor_expands_codes", _P, restype=_I)
_FAULTS = {
    1: "a token id outside the vocabulary",
    2: "a position outside the tables of positions",
    3: "a slot outside the cache",
    4: "lengths or a block table that lead outside the batch or the cache",
    5: "a row that leads outside its slot",
    8: "a row with an adapter that is not among its rows",
    9: "rows that expand codes before those that do not",
}
_NO_MEMORY = 6
_WRONG_PHASES = 7
_LEAST_ROWS = 16
_LINE = 64
_WORK = 5
"""The integers in a ``Work`` of program.h."""


class _BufferStruct(ctypes.Structure):
    """``Buffer`` of program.h."""

    _fields_ = (("rows", _P), ("stride", _I))


class _BoundStruct(ctypes.Structure):
    """``Bound`` of program.h."""

    _fields_ = (
        ("instructions", _P),
        ("count", _I),
        ("buffers", _P),
        ("buffer_count", _I),
        ("prepared", _P * 3),
        ("prepared_bytes", _I * 3),
    )


class _SlotsStruct(ctypes.Structure):
    """``Slots`` of program.h."""

    _fields_ = (
        ("tokens", _P),
        ("token_stride", _I),
        ("blocks", _P),
        ("block_stride", _I),
        ("slots", _I),
        ("block_size", _I),
        ("groups", _I),
    )


class _BatchStruct(ctypes.Structure):
    """``Batch`` of program.h."""

    _fields_ = (
        ("tokens", _I),
        *((name, _P) for name in ("ids", "positions", "slots")),
        ("sequences", _I),
        *((name, _P) for name in ("query_start", "seq_lens", "tables")),
        ("table_width", _I),
        ("adapted", RowsStruct),
        *((name, _I) for name in ("coded", "coded_experts", "slot_stride", "table_stride")),
    )


def choose(variant: Choice = "auto") -> Variant:
    """Returns the variant that :class:`Forward` runs. Raises ValueError if one is asked for that cannot run."""
    return select_variant(
        variant, native=None if library() is not None else unavailable_reason() or "there is no library"
    )


def _of_all_groups(batches: Sequence[AttentionBatch]) -> tuple[Tensor, Tensor]:
    """Slots and block tables of all groups of layers, one after another."""
    if len(batches) == 1:
        return batches[0].slots, batches[0].block_tables
    return torch.stack([each.slots for each in batches]), torch.stack([each.block_tables for each in batches])


def _describe_sequences(struct: _BatchStruct, rows: int, batch: AttentionBatch, slots: Tensor, tables: Tensor) -> None:
    """Writes the sequences to ``struct``. Raises ValueError unless they have ``rows`` tokens."""
    if batch.num_tokens != rows:
        raise ValueError(f"forward: the batch has {batch.num_tokens} tokens, expected {rows}")
    struct.slots = slots.data_ptr()
    struct.sequences = batch.num_sequences
    struct.query_start = batch.query_start.data_ptr()
    struct.seq_lens = batch.seq_lens.data_ptr()
    struct.tables = tables.data_ptr()
    struct.table_width = tables.shape[-1]
    struct.slot_stride, struct.table_stride = rows, batch.num_sequences * tables.shape[-1]


def _check_fault(fault: int, rows: int) -> None:
    if fault == _NO_MEMORY:
        raise MemoryError(f"forward: no room to plan a step of {rows} rows")
    if fault == _WRONG_PHASES:
        raise ValueError("forward: an instruction is of no kind, or declares other phases than it runs")
    if fault:
        raise IndexError(f"forward: the step has {_FAULTS[fault]}")


class Forward:
    """A program with its KV caches and its working memory, which grows to the longest step and is kept."""

    def __init__(
        self, program: Program, caches: Sequence[tuple[Tensor, ...]] = (), *, variant: Choice = "auto"
    ) -> None:
        """Binds the program to the caches.

        Args:
            caches: K and V of each layer (:func:`stentor.kernels.make_kv_cache`), of one of
                :data:`.instruction.CACHE_TYPES`, on the CPU. int8 ones are followed by their scales. A layer that no
                instruction refers to may keep anything.

        Raises:
            ValueError: caches that the variant cannot take, or a variant that cannot run.
        """
        self.program = program
        self.variant = choose(variant)
        self._caches = list(caches)
        stored = {instruction.layer: instruction.cache_scales for instruction in program.instructions}
        shapes = {}
        for layer, cache in enumerate(self._caches):
            if layer not in stored:
                continue
            k_cache, v_cache, *scales = cache
            k_scale, v_scale = scales or stored[layer] or (None, None)
            shapes[layer] = check_caches(k_cache, v_cache, "forward")
            check_scales(k_cache, k_scale, v_scale, "forward")
            if (unsupported_reason := native_cache_unsupported_reason(k_cache, k_cache.dtype)) is not None:
                raise ValueError(f"forward: {unsupported_reason}")
            if k_cache.dtype not in CACHE_TYPES:
                raise ValueError(f"forward: caches are float32, bfloat16, int8 or float8, not {describe(k_cache)}")
        for i in program.instructions:
            if i.layer == NONE:
                continue
            found = shapes[i.layer][1:3] if i.layer in shapes else None
            if found != (i.kv_heads, i.dim):
                raise ValueError(
                    f"forward: layer {i.layer} needs a cache of {i.kv_heads} heads of {i.dim} dims, there is "
                    f"{'none' if found is None else f'one of {found[0]} heads of {found[1]}'}"
                )
        ops = {instruction.op for instruction in program.instructions}
        learned = any(i.op == "embed" and i.second_weight is not None for i in program.instructions)
        self._needs = {
            "ids": "embed" in ops,
            "positions": "rotate" in ops or learned,
            "a batch": bool(ops & {"rotate", "attend"}),
        }
        self._groups = 1 + max((i.group for i in program.instructions if i.layer != NONE), default=-1)
        self._structs: ctypes.Array[InstructionStruct] = program.structs(self._caches)
        self._rows = 0
        self._buffers: list[Tensor] = []
        self._buffer_structs = (_BufferStruct * 0)()
        self._bound = _BoundStruct(ctypes.addressof(self._structs), len(self._structs))
        self._bound.prepared_bytes[:] = program.prepared_bytes
        self._stretches = list(_stretches(program))
        self.expands = self.variant == "native" and bool(_EXPANDS(ctypes.byref(self._bound)))
        """Whether rows may multiply weights whose codes were expanded to bfloat16 (see :meth:`run`): the CPU has matrix
        tiles, and the program has coded weights."""
        self.tokens_per_row = max((i.experts / i.router.top_k for i in program.instructions if i.router), default=1.0)
        """The tokens of which an expert takes one, if they are routed evenly; 1 without experts."""

    def buffer(self, number: int, rows: int) -> Tensor:
        """Returns the first ``rows`` rows of a buffer, float32 [rows, width], valid until the next longer run."""
        self._reserve(rows)
        return self._buffers[number][:rows]

    def run(
        self,
        rows: int,
        ids: Tensor | None = None,
        positions: Tensor | None = None,
        batches: Sequence[AttentionBatch] = (),
        besides: object = None,
        adapted: AdapterRows | None = None,
        coded: int | None = None,
        coded_experts: int | None = None,
    ) -> None:
        """Runs the program over ``rows`` rows.

        Args:
            rows: the number of rows; one per token if the program reads tokens.
            ids: int64 [rows], contiguous; needed if the program embeds.
            positions: int64 [rows], contiguous; needed if it rotates or adds position embeddings.
            batches: the sequences of the rows, needed if it rotates or attends: one for each group of layers, with its
                block tables and slots and otherwise equal.
            besides: passed to the program's calls.
            adapted: which rows have adapters; the adapter instructions add to the products of these. None: no row has
                one.
            coded: rows before this one multiply codes directly, those from it on expand codes of dense layers, if the
                program :attr:`expands`. None: no row expands them.
            coded_experts: rows from this one on, which is not before ``coded``, also expand codes of experts. None: no
                row does.

        Raises:
            IndexError: an id, a position, a slot, a block table or a row is out of range; nothing was written then.
            MemoryError: no room to plan the batch; nothing was written then.
            ValueError: what the program needs is missing, or has another shape or dtype.
        """
        if rows == 0:
            return
        for (name, needed), given in zip(self._needs.items(), (ids, positions, batches or None), strict=True):
            if needed and given is None:
                raise ValueError(f"forward: the program needs {name}")
        if len(batches) < self._groups:
            raise ValueError(f"forward: {len(batches)} groups of layers have block tables, {self._groups} need them")
        self._reserve(rows)
        if self.variant == "reference":
            buffers = [buffer[:rows] for buffer in self._buffers]
            reference.run_program(self.program, buffers, self._caches, ids, positions, batches, adapted, besides)
            return
        struct = _BatchStruct(tokens=rows)
        struct.coded, struct.coded_experts = self._forms(rows, coded, coded_experts)
        for name, tensor in (("ids", ids), ("positions", positions)):
            if tensor is not None:
                if tensor.shape != (rows,) or tensor.dtype != torch.int64 or not tensor.is_contiguous():
                    raise ValueError(f"forward: {name} {describe(tensor)} must be contiguous int64 [{rows}]")
                setattr(struct, name, tensor.data_ptr())
        if batches:
            slots, tables = _of_all_groups(batches)  # held here, for the struct has only their addresses
            _describe_sequences(struct, rows, batches[0], slots, tables)
        if adapted is not None:
            struct.adapted = adapted.struct
        size = ctypes.sizeof(InstructionStruct)
        for first, end, called in self._stretches:
            bound = _BoundStruct.from_buffer_copy(self._bound)
            bound.instructions, bound.count = ctypes.addressof(self._structs) + first * size, end - first
            _check_fault(_RUN(ctypes.byref(bound), ctypes.byref(struct), threads()), rows)
            if called is not None:
                called.call(self._buffers, rows, besides)

    def _forms(self, rows: int, coded: int | None, coded_experts: int | None) -> tuple[int, int]:
        """The first row that expands codes of dense layers, and of experts too, of so many rows."""
        if not self.expands:
            return rows, rows
        return rows if coded is None else coded, rows if coded_experts is None else coded_experts

    def _reserve(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = max(_LEAST_ROWS, 1 << (rows - 1).bit_length())
        sizes = [self._rows * width * 4 for width in self.program.widths]
        *prepared, apart = self.program.prepared_bytes
        sizes += [self._rows * each for each in (*prepared, apart if self.expands else 0)]
        starts = list(itertools.accumulate((-(-size // _LINE) * _LINE + _LINE for size in sizes), initial=0))
        memory = empty_huge(starts[-1])
        parts = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        self._buffers = [
            part.view(torch.float32).view(self._rows, width)
            for part, width in zip(parts, self.program.widths, strict=False)
        ]
        self._buffer_structs = (_BufferStruct * len(self._buffers))(
            *(_BufferStruct(buffer.data_ptr(), buffer.stride(0)) for buffer in self._buffers)
        )
        for scratch_slot, part in enumerate(parts[len(self._buffers) :]):
            self._bound.prepared[scratch_slot] = part.data_ptr()
        self._bound.buffers = ctypes.addressof(self._buffer_structs)
        self._bound.buffer_count = len(self._buffers)


def _stretches(program: Program) -> Iterator[tuple[int, int, Instruction | None]]:
    """Yields the ranges [first, end) of instructions that run natively in one call, and the call that follows each."""
    first = 0
    for at, instruction in enumerate(program.instructions):
        if instruction.op == "call":
            yield first, at, instruction
            first = at + 1
    yield first, len(program.instructions), None


class Step:
    """Two programs run by one native call: a body over the tokens of a step, and a head over those that need logits.

    The native code lays out the batch from the tables of all slots, without copying them.
    """

    def __init__(
        self,
        body: Forward,
        residual: int,
        head: Forward,
        hidden: int,
        logits: int,
        *,
        tokens: npt.NDArray[np.int64],
        blocks: npt.NDArray[np.int32],
        block_size: int,
    ) -> None:
        """Takes the programs and the tables of all slots. The native variant runs them.

        ``residual`` is the buffer of ``body`` that ends as hidden states, ``hidden`` the buffer of ``head`` that begins
        as some of them, and ``logits`` the one with the result.

        Args:
            tokens: [slots, positions], the tokens of every slot; contiguous, read at every run.
            blocks: [groups, slots, blocks], the block table of every slot for each group of layers; contiguous, read at
                every run. More groups than the body's may follow.
            block_size: tokens of a block.

        Raises:
            ValueError: programs that do not follow each other, or tables of another shape or dtype.
        """
        widths = body.program.widths[residual], head.program.widths[hidden]
        if body.program.calls or head.program.calls:
            raise ValueError("forward: a program with calls is no single step")
        if widths[0] != widths[1] or any(head._needs.values()):
            raise ValueError(f"forward: a head over {widths[1]} columns does not follow a body that leaves {widths[0]}")
        blocks = blocks[: body._groups]
        for name, table, dtype, shape in (
            ("tokens", tokens, np.int64, (len(tokens),)),
            ("blocks", blocks, np.int32, (body._groups, len(tokens))),
        ):
            if table.dtype != dtype or table.shape[:-1] != shape or not table.flags.c_contiguous:
                raise ValueError(
                    f"forward: {name} {table.dtype} {table.shape} must be contiguous {np.dtype(dtype)} {[*shape, ...]}"
                )
        self._body, self._residual = body, residual
        self._head, self._hidden, self._logits = head, hidden, logits
        self._width = head.program.widths[hidden]
        self._tables = tokens, blocks
        slots = _SlotsStruct(
            tokens.ctypes.data,
            tokens.shape[1],
            blocks.ctypes.data,
            blocks.shape[2],
            len(tokens),
            block_size,
            len(blocks),
        )
        self._work = (_I * (_WORK * len(tokens)))()
        self._best = np.zeros(len(tokens), dtype=np.int64)
        # kept in the form that is passed: a step has no time to make them anew
        self._pointers = ctypes.byref(body._bound), ctypes.byref(head._bound), ctypes.byref(slots)
        self._best_at = self._best.ctypes.data

    def run(
        self,
        work: Sequence[tuple[int, int, int, int, int]],
        *,
        every: bool = False,
        coded: int | None = None,
        coded_experts: int | None = None,
    ) -> tuple[Tensor, npt.NDArray[np.int64]] | None:
        """Runs some rows, at most one of each slot.

        Args:
            work: for each row the slot, the first position, the number of tokens, the number of last tokens that need
                logits, and the slot of its adapter (below 0: none).
            every: leave the residual of every token in its buffer. Otherwise no token's is there, and the last layer's
                work after its keys and values is done only for the tokens that need logits.
            coded: the number of first rows that multiply codes directly, if the body expands them; None: all.
            coded_experts: the number of first rows that multiply codes of experts directly; None: all.

        Returns:
            For the tokens that need logits, in order: the logits, float32 [wanted, vocabulary], and the index of the
                largest one, int64 [wanted]: the lowest of equal ones, -1 if all are -inf. Both are valid until the next
                run. None if no token needs logits.

        Raises:
            IndexError: work, tokens or blocks out of range; nothing was written then.
            MemoryError: no room to plan the batch.
        """
        if len(work) * _WORK > len(self._work):
            raise IndexError(f"forward: the step has {len(work)} rows and {len(self._work) // _WORK} slots")
        total = sampled = at = 0
        for row in work:
            self._work[at : at + _WORK] = list(row)
            total += row[2]
            sampled += row[3]
            at += _WORK
        if not at:
            return None
        self._body._reserve(total)
        if sampled:
            self._head._reserve(sampled)
        if sampled > len(self._best):
            self._best = np.zeros(2 * sampled, dtype=np.int64)
            self._best_at = self._best.ctypes.data
        body, head, slots = self._pointers
        fault = _RUN_STEP(
            body,
            head,
            self._residual,
            self._hidden,
            self._logits,
            self._width,
            slots,
            self._work,
            len(work),
            *self._body._forms(len(work), coded, coded_experts),
            every,
            self._best_at,
            threads(),
        )
        _check_fault(fault, total)
        return (self._head.buffer(self._logits, sampled), self._best[:sampled]) if sampled else None
