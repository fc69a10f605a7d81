"""Weights packed in the order in which a CPU multiplies by them (packed.h draws the layouts)."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..guards import describe
from ..native import NativeFunction, library, threads, unavailable_reason
from ..native.memory import empty_huge
from ..tables import E2M1, IQ4_NL

PackedKind = Literal["f32", "bf16", "q4", "q4m", "q8", "q8h", "q8m", "iq4nl", "mxfp4", "nvfp4", "q4z", "q8z"]
Stored = Literal["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL", "MXFP4"]
"""GGUF block types that can be packed."""

KINDS: tuple[PackedKind, ...] = (
    "f32",
    "bf16",
    "q4",
    "q4m",
    "q8",
    "q8h",
    "q8m",
    "iq4nl",
    "mxfp4",
    "nvfp4",
    "q4z",
    "q8z",
)
TILE = 16
"""Outputs that are interleaved."""
BLOCK = 32
"""Inputs that share a scale, in kinds with codes."""
PARTS: dict[PackedKind, int] = {
    "f32": 0,
    "bf16": 0,
    "q4": 1,
    "q4m": 2,
    "q8": 1,
    "q8h": 2,
    "q8m": 2,
    "iq4nl": 1,
    "mxfp4": 1,
    "nvfp4": 2,
    "q4z": 1,
    "q8z": 1,
}
"""Scales per block: none, one, or two (scale and min for ``MINS``, one per half for ``HALVES``)."""
OFFSETS: dict[PackedKind, int] = {"q4": 8, "q4m": 0, "q8": 128, "q8h": 128, "q8m": 128, "q4z": 0, "q8z": 128}
"""The zero of the codes, in kinds without a table."""
MINS: frozenset[PackedKind] = frozenset({"q4m", "q8m"})
HALVES: frozenset[PackedKind] = frozenset({"q8h", "nvfp4"})
TABLES: dict[PackedKind, tuple[float, ...]] = {"iq4nl": IQ4_NL, "mxfp4": E2M1, "nvfp4": E2M1}
"""The values of the 16 codes."""
ZEROS: dict[PackedKind, torch.dtype] = {"q4z": torch.uint8, "q8z": torch.int16}
"""The dtype of zero points; one of eight bits may be 256."""
USUAL_ZEROS: dict[PackedKind, int] = {"q4z": 8, "q8z": 128}
"""The zero of weights without zero points."""
FOUR_BITS: frozenset[PackedKind] = frozenset({"q4", "q4m", "q4z", *TABLES})
SCALES: dict[PackedKind, torch.dtype] = {"mxfp4": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}
"""The dtypes of one-byte scales; other kinds have float16."""
GROUPED: frozenset[PackedKind] = frozenset({"q8", *ZEROS})
"""Kinds whose scales may be shared by several blocks, in any precision."""
PRECISIONS: tuple[torch.dtype, ...] = (torch.float16, torch.float32, torch.bfloat16, torch.uint8, torch.int8)
WHOLE: dict[PackedKind, torch.dtype] = {"q4m": torch.uint8, "q8m": torch.uint8, "q8h": torch.int8}
"""The dtype of integer scales and minima, in kinds that may have them; they are multiplied by a factor per span."""
SPAN = 8
"""Blocks that share a factor of integer scales."""
PLAIN: dict[torch.dtype, PackedKind] = {torch.float32: "f32", torch.bfloat16: "bf16"}

_STORED: dict[Stored, tuple[int, PackedKind, int, int]] = {
    # ggml's type → native.cpp's number, the packed kind, columns and bytes of a block. Blocks of 256 columns have
    # integer scales.
    "Q4_0": (0, "q4", 32, 18),
    "Q4_1": (1, "q4m", 32, 20),
    "Q8_0": (2, "q8", 32, 34),
    "Q4_K": (3, "q4m", 256, 144),
    "Q6_K": (4, "q8h", 256, 210),
    "Q5_0": (5, "q8", 32, 22),
    "Q5_1": (6, "q8m", 32, 24),
    "Q5_K": (7, "q8m", 256, 176),
    "IQ4_NL": (8, "iq4nl", 32, 18),
    "MXFP4": (9, "mxfp4", 32, 17),
}

PACKED_BLOCKS: tuple[Stored, ...] = tuple(_STORED)

_P, _I = ctypes.c_void_p, ctypes.c_int64
_PACK_PLAIN = NativeFunction("stentor_pack_plain", _P, _P, _I, _I, _I, _I)
_PACK_GGUF = NativeFunction("stentor_pack_gguf", _P, _I, _P, _I, _I, _I, _I)
_PACK_CODES = NativeFunction("stentor_pack_codes", _P, _P, _P, _P, _P, _I, _I, _I)
_ACTIVATION_FORMAT = NativeFunction("stentor_packed_activation_format", _I, restype=_I)
_STRIDE = NativeFunction("stentor_prepared_stride", _I, _I, restype=_I)
_UNPACK = NativeFunction("stentor_unpack_rows", _P, _P, _I, _P, _I)


class PackedStruct(ctypes.Structure):
    """``Packed`` of packed.h."""

    _fields_ = (
        ("kind", _I),
        ("precision", _I),
        ("outputs", _I),
        ("inputs", _I),
        ("shared", _I),
        ("codes", _P),
        ("scales", _P),
        ("zeros", _P),
        ("factors", _P),
        ("spans", _P),
    )


@dataclass(frozen=True)
class Scaling:
    """How the scales of a kind are kept. Only :data:`GROUPED` and :data:`WHOLE` kinds may differ from the defaults."""

    dtype: torch.dtype | None = None
    """float16, float32 or bfloat16, or as :data:`WHOLE` says; None: the kind's own."""
    group: int = BLOCK
    """Inputs that share a scale, a multiple of a block; 0: all."""
    zeros: bool = False
    """Each group has a zero point; only for :data:`ZEROS` kinds."""


@dataclass(frozen=True)
class PackedWeight:
    """A weight [N, K] on the CPU.

    ===== =================================================
    kind  value
    ===== =================================================
    f32   as it is
    bf16  as it is
    q4    scale · (code - 8), codes of four bits
    q4m   scale · code + min, codes of four bits
    q8    scale · (code - 128), codes of eight bits
    q8h   as q8, with a scale for each half of a block
    q8m   scale · (code - 128) + min, codes of eight bits
    q4z   scale · code - scale · zero, codes of four bits
    q8z   the same, codes of eight bits
    iq4nl scale · table[code], codes of four bits
    mxfp4 as iq4nl, with scales that are powers of two
    nvfp4 as iq4nl, with scales in float8_e4m3 for each
          half of a block, times a factor of the output
    ===== =================================================
    """

    kind: PackedKind
    shape: tuple[int, int]
    """(N, K)"""
    codes: Tensor
    """uint8 [tiles, bytes of a tile]"""
    scales: Tensor
    """[tiles, groups, parts, 16], of the dtype that :class:`Scaling` says; empty for plain kinds."""
    factors: Tensor | None = None
    """float32 [tiles · 16], for nvfp4 only."""
    zeros: Tensor | None = None
    """[tiles, groups, 16], of the dtype that :data:`ZEROS` says."""
    shared: int = 1
    """Blocks per group."""
    spans: Tensor | None = None
    """float16 [tiles, spans, 1 or 2, 16]: factors of integer scales, and of minima."""

    @property
    def nbytes(self) -> int:
        planes = (self.codes, self.scales, self.factors, self.zeros, self.spans)
        return sum(plane.nbytes for plane in planes if plane is not None)

    @property
    def groups(self) -> int:
        """The number of groups per output."""
        return self.scales.shape[1]

    def rows(self, first: int, count: int) -> "PackedWeight":
        """Returns outputs [first, first + count), both multiples of 16; shares the memory.

        Raises:
            ValueError: outputs that begin or end inside a tile.
        """
        if first % TILE or count % TILE or not 0 <= first < first + count <= self.shape[0]:
            raise ValueError(f"outputs [{first}, {first + count}) of a weight {self.shape} are not whole tiles")
        tiles = slice(first // TILE, (first + count) // TILE)
        return replace(
            self,
            shape=(count, self.shape[1]),
            codes=self.codes[tiles],
            scales=self.scales[tiles],
            factors=None if self.factors is None else self.factors[first : first + count],
            zeros=None if self.zeros is None else self.zeros[tiles],
            spans=None if self.spans is None else self.spans[tiles],
        )

    @property
    def struct(self) -> PackedStruct:
        """The struct that the kernels take; it does not keep the tensors alive."""
        dtype = self.scales.dtype
        precision = PRECISIONS.index(dtype) if dtype in PRECISIONS else 0
        planes = (self.codes, self.scales, self.zeros, self.factors, self.spans)
        pointers = (None if plane is None else plane.data_ptr() for plane in planes)
        return PackedStruct(KINDS.index(self.kind), precision, *self.shape, self.shared, *pointers)


def unsupported_reason() -> str | None:
    """Returns why no weight can be packed; None if they can."""
    return None if library() is not None else unavailable_reason() or "there is no native library"


ActivationFormat = Literal["f32", "bf16", "int8"]
"""The format in which a weight takes its input: float32, bfloat16, or bytes with a scale and a peak for each 32."""
ACTIVATION_FORMATS: tuple[ActivationFormat, ...] = ("f32", "bf16", "int8")


def activation_format_of(kind: PackedKind) -> ActivationFormat:
    """Returns the format in which a weight of this kind takes its input."""
    function = _ACTIVATION_FORMAT.bind()
    if function is None:
        raise ValueError(f"weights cannot be packed: {unsupported_reason()}")
    number: int = function(KINDS.index(kind))
    return ACTIVATION_FORMATS[number]


def prepared_stride(activation_format: ActivationFormat, width: int) -> int:
    """Returns the bytes of one row of ``width`` values in a format."""
    stride: int = _STRIDE(ACTIVATION_FORMATS.index(activation_format), width)
    return stride


def kind_of(stored: Stored) -> PackedKind:
    """Returns the kind that blocks of a GGUF type are packed as."""
    return _STORED[stored][1]


def scaling_of(stored: Stored) -> Scaling:
    """Returns how the scales of blocks of a GGUF type are kept."""
    _, kind, columns, _ = _STORED[stored]
    return Scaling(WHOLE[kind]) if columns == SPAN * BLOCK else Scaling()


def empty_packed(
    outputs: int,
    inputs: int,
    kind: PackedKind,
    *,
    scaling: Scaling | None = None,
    device: torch.device | str = "cpu",
    take: Callable[[int], Tensor] = empty_huge,
) -> PackedWeight:
    """Returns a zeroed weight. On ``meta`` it takes no memory.

    ``take`` allocates a number of bytes as uint8, at a multiple of 64 bytes.

    Raises:
        ValueError: a side of length 0, or a kind that has no such scales.
        MemoryError: no room.
    """
    if outputs < 1 or inputs < 1:
        raise ValueError(f"a weight of {outputs} outputs and {inputs} inputs cannot be packed")
    scaling = scaling or Scaling()
    whole = scaling.dtype is not None and scaling == Scaling(WHOLE.get(kind))
    if kind == "q8h" and not whole:
        raise ValueError(f"a packed q8h weight has scales in int8, not {scaling}")
    if scaling != Scaling() and kind not in GROUPED and not whole:
        raise ValueError(f"a packed {kind} weight has scales of its own: {', '.join(sorted(GROUPED))} take {scaling}")
    dtype = scaling.dtype or SCALES.get(kind, torch.float16)
    wrong = dtype not in PRECISIONS[:3] and kind in GROUPED
    if wrong or scaling.group % BLOCK or scaling.group < 0 or (scaling.zeros and kind not in ZEROS):
        raise ValueError(f"a packed {kind} weight has no scales as {scaling}")
    tiles = -(-outputs // TILE)
    match kind:
        case "f32":
            nbytes = inputs * TILE * 4
        case "bf16":
            nbytes = -(-inputs // 2) * TILE * 4
        case _:
            nbytes = -(-inputs // BLOCK) * BLOCK * TILE // (2 if kind in FOUR_BITS else 1)
    blocks = -(-inputs // BLOCK)
    shared = scaling.group // BLOCK or blocks
    groups = -(-blocks // shared) if PARTS[kind] else 0
    scales = (tiles, groups, PARTS[kind], TILE)
    meta = torch.device(device).type == "meta"

    def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if meta:
            return torch.empty(shape, dtype=dtype, device="meta")
        return take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    return PackedWeight(
        kind,
        (outputs, inputs),
        codes=room((tiles, nbytes), torch.uint8),
        scales=room(scales, dtype),
        factors=room((tiles * TILE,), torch.float32) if kind == "nvfp4" else None,
        zeros=room((tiles, groups, TILE), ZEROS[kind]) if scaling.zeros else None,
        shared=shared,
        spans=room((tiles, -(-blocks // SPAN), _span_parts(kind), TILE), torch.float16) if whole else None,
    )


def _span_parts(kind: PackedKind) -> int:
    return 2 if kind in MINS else 1


def pack_plain_(weight: PackedWeight, first: int, rows: Tensor, *, alone: bool = False) -> None:
    """Packs ``rows`` [n, K] at outputs [first, first + n) of a plain weight, converting their dtype.

    ``alone``: runs in the calling thread only, because others have their own work.

    Raises:
        ValueError: rows that do not fit.
    """
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}.get(weight.kind)
    if dtype is None or rows.dim() != 2 or rows.shape[1] != weight.shape[1]:
        raise ValueError(f"rows {tuple(rows.shape)} do not fit a packed {weight.kind} weight {weight.shape}")
    _check_rows(weight, first, len(rows))
    rows = rows.to(dtype)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    at_once = 1 if alone else threads()
    _run(_PACK_PLAIN, ctypes.byref(weight.struct), rows.data_ptr(), rows.stride(0), first, len(rows), at_once)


def pack_gguf_(weight: PackedWeight, first: int, blocks: Tensor, stored: Stored) -> None:
    """Packs rows of GGUF blocks (uint8 [n, bytes of a row]) at outputs [first, first + n).

    Raises:
        ValueError: blocks that do not fit.
    """
    number, kind, columns, nbytes = _STORED[stored]
    whole, rest = divmod(weight.shape[1], columns)
    fits = blocks.dim() == 2 and blocks.dtype == torch.uint8 and not rest and blocks.shape[1] == whole * nbytes
    dtype = scaling_of(stored).dtype or SCALES.get(kind, torch.float16)
    if kind != weight.kind or weight.shared != 1 or weight.scales.dtype != dtype or not fits:
        raise ValueError(
            f"{stored} blocks {tuple(blocks.shape)} {blocks.dtype} do not fit a packed {weight.kind} "
            f"weight {weight.shape}"
        )
    _check_rows(weight, first, len(blocks))
    blocks = blocks.contiguous()
    _run(
        _PACK_GGUF,
        ctypes.byref(weight.struct),
        number,
        blocks.data_ptr(),
        blocks.stride(0),
        first,
        len(blocks),
        threads(),
    )


def pack_codes_(
    weight: PackedWeight,
    first: int,
    codes: Tensor,
    scales: Tensor,
    factors: Tensor | None = None,
    zeros: Tensor | None = None,
    spans: Tensor | None = None,
) -> None:
    """Packs rows of codes and scales at outputs [first, first + n).

    Args:
        weight: of a kind with codes.
        first: the first output.
        codes: uint8 [n, K], one per byte.
        scales: float32 [n, groups, parts], as the kind has them; rounded to the kind's dtype.
        factors: float32 [n], for nvfp4 only.
        zeros: integers [n, groups], if the weight has them.
        spans: float32 [n, spans, 1 or 2], for integer scales; kept in float16.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    if (
        not PARTS[weight.kind]
        or codes.dtype != torch.uint8
        or scales.dtype != torch.float32
        or codes.dim() != 2
        or codes.shape[1] != weight.shape[1]
        or tuple(scales.shape) != (len(codes), weight.groups, PARTS[weight.kind])
    ):
        raise ValueError(
            f"codes {tuple(codes.shape)} {codes.dtype} and scales {tuple(scales.shape)} {scales.dtype} do not fit a "
            f"packed {weight.kind} weight {weight.shape}"
        )
    _check_rows(weight, first, len(codes))
    if (factors is None) != (weight.factors is None) or (factors is not None and factors.shape != codes.shape[:1]):
        found = "none" if factors is None else describe(factors)
        raise ValueError(f"factors ({found}) do not fit a packed {weight.kind} weight {weight.shape}")
    if (zeros is None) != (weight.zeros is None) or (zeros is not None and zeros.shape != scales.shape[:2]):
        found = "none" if zeros is None else describe(zeros)
        raise ValueError(f"zeros ({found}) do not fit a packed {weight.kind} weight {weight.shape}")
    factors_shape = (len(codes), *weight.spans.shape[1:3]) if weight.spans is not None else None
    if (None if spans is None else tuple(spans.shape)) != factors_shape or (
        spans is not None and spans.dtype != torch.float32
    ):
        found = "none" if spans is None else describe(spans)
        raise ValueError(f"spans ({found}) do not fit a packed {weight.kind} weight {weight.shape}")
    if weight.factors is not None and factors is not None:
        weight.factors[first : first + len(codes)] = factors
    codes, scales = codes.contiguous(), scales.contiguous()
    zeros = None if zeros is None else zeros.to(torch.int16).contiguous()
    spans = None if spans is None else spans.contiguous()
    beside = [None if each is None else each.data_ptr() for each in (zeros, spans)]
    struct = ctypes.byref(weight.struct)
    _run(_PACK_CODES, struct, codes.data_ptr(), scales.data_ptr(), *beside, first, len(codes), threads())


def unpack_rows(weight: PackedWeight, rows: Tensor) -> Tensor:
    """Returns the values of some outputs: int64 [n] → float32 [n, K].

    Raises:
        IndexError: an output outside the weight.
        ValueError: rows that are not int64 [n] on the CPU.
    """
    if rows.dim() != 1 or rows.dtype != torch.int64 or not rows.is_cpu:
        raise ValueError(f"unpack_rows: rows {describe(rows)} must be int64 [n] on the CPU")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < weight.shape[0]:
        raise IndexError(f"unpack_rows: rows {int(rows.min())} to {int(rows.max())} of a weight {weight.shape}")
    rows = rows.contiguous()
    out = torch.empty(len(rows), weight.shape[1])
    _run(_UNPACK, ctypes.byref(weight.struct), rows.data_ptr(), len(rows), out.data_ptr(), threads())
    return out


def _check_rows(weight: PackedWeight, first: int, count: int) -> None:
    if first < 0 or first + count > weight.shape[0]:
        raise ValueError(f"rows {first} to {first + count} lie outside a packed weight {weight.shape}")


def _run(function: NativeFunction, *arguments: object) -> None:
    bound = function.bind()
    if bound is None:
        raise ValueError(f"weights cannot be packed: {unsupported_reason()}")
    bound(*arguments)
