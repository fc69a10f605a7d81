"""Linear layers and embedding tables on a CPU, packed for its instruction set while loading."""

from collections.abc import Mapping
from typing import overload

import msgspec
import torch

from stentor.kernels import ActivationKind, ActivationScheme, quantize_weight_int8
from stentor.kernels.forward import Traced
from stentor.kernels.linear_packed import (
    BLOCK,
    PACKED_BLOCKS,
    PLAIN,
    PackedKind,
    PackedWeight,
    Scaling,
    Stored,
    empty_packed,
    kind_of,
    linear_packed,
    pack_codes_,
    pack_gguf_,
    pack_plain_,
    scaling_of,
    unpack_rows,
)
from stentor.kernels.linear_packed.weight import PARTS
from stentor.kernels.linear_w4 import W4Weight
from stentor.kernels.linear_w4.planes import unpack_codes

from ...quantization.choose import PACKED_GGUF
from ...quantization.formats import (
    Format,
    FP4Format,
    GGUFFormat,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    OnlineFormat,
)
from ...quantization.gguf_codes import GROUP, SPAN, block_bytes, read_codes
from ...quantization.stored import (
    FP4Weight,
    PartFormat,
    endings,
    expand,
    pack_int4,
    read_fp4,
    read_grouped,
    read_scaled,
)
from .layer_context import LayerContext, LinearParts
from .quantized import Stream
from .weights import WeightError, WeightMap, check_plain, check_shape

_PIECE = 1 << 20
"""Values of blocks that are read as codes at once."""


class _Piece(msgspec.Struct, frozen=True):
    """Consecutive outputs with one packing."""

    weight: PackedWeight
    column: int
    """Index of its first output in the layer."""
    bias: torch.Tensor | None
    """float32, of these outputs."""


class PackedLinear:
    """Parts fused along the outputs; adjacent parts with equal packing share one weight."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(self, of: LinearParts, formats: Mapping[str, Format | None], chosen: Mapping[str, Format]) -> None:
        """``chosen``: the formats multiplied as stored, of all parts or none. The bias is float32."""
        parts, inputs, context, bias = of.outputs, of.inputs, of.context, of.bias
        self.multiplications = inputs * sum(parts.values())
        """For one row."""
        self._pieces: list[_Piece] = []
        runs: list[tuple[tuple[PackedKind, Scaling], list[str]]] = []
        for part in parts:
            form = packed_form(chosen.get(part), context)
            if runs and runs[-1][0] == form:
                runs[-1][1].append(part)
            else:
                runs.append((form, [part]))
        column = 0
        for (kind, scaling), names in runs:
            outputs = sum(parts[name] for name in names)
            weight = empty_packed(
                outputs,
                inputs,
                kind,
                scaling=scaling,
                device=context.place,
                take=context.take,
            )
            self._pieces.append(_Piece(weight, column, None if bias is None else bias[column : column + outputs]))
            column += outputs
            first = 0
            for name in names:
                gather_packed(of.weights, name, weight, first, parts[name], formats[name], chosen.get(name))
                first += parts[name]

    @overload
    def __call__(
        self, x: torch.Tensor, activation: ActivationKind | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Traced) -> Traced: ...

    def __call__(self, x: Stream, activation: ActivationKind | None = None, dtype: torch.dtype | None = None) -> Stream:
        """x [tokens, inputs] → act(…) [tokens, outputs] of ``dtype``, by default that of ``x``."""
        if isinstance(x, Traced):
            return x.linear([(piece.weight, piece.column, piece.bias) for piece in self._pieces])
        outputs = [
            linear_packed(x, piece.weight, piece.bias, activation=activation, dtype=dtype) for piece in self._pieces
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


class PackedTable:
    """A table of embeddings, whose rows are unpacked on lookup; may also be the head's weight."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(
        self,
        weights: WeightMap,
        part: str,
        rows: int,
        columns: int,
        context: LayerContext,
        values: torch.Tensor | None = None,
    ) -> None:
        """``values``: float32 [rows, columns], if they are computed and not stored."""
        format = context.quantized.format_of(part) if context.quantized else None
        kept = (
            format
            if isinstance(format, GGUFFormat)
            and format.kind in PACKED_GGUF
            and context.dtype == torch.bfloat16
            and context.backend != "expanded"
            else None
        )
        kind, scaling = packed_form(kept, context)
        self.weight = empty_packed(rows, columns, kind, scaling=scaling, device=context.place, take=context.take)
        if values is None:
            gather_packed(weights, part, self.weight, 0, rows, None if kept is None else format, kept)
        elif not context.filled and not context.shapes_only:
            pack_plain_(self.weight, 0, values)

    @overload
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Stream) -> Stream: ...

    def __call__(self, x: Stream) -> Stream:
        """x [tokens, columns] → [tokens, rows], as the head."""
        return x.linear([(self.weight, 0, None)]) if isinstance(x, Traced) else linear_packed(x, self.weight)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → float32 [tokens, columns]"""
        return unpack_rows(self.weight, ids)


def packed_form(format: Format | None, context: LayerContext) -> tuple[PackedKind, Scaling]:
    """The packing of a format's weights. Scales are kept as stored; those of groups, once a group."""
    match format:
        case None:
            return PLAIN[context.dtype], Scaling()
        case GGUFFormat(kind=stored):
            blocks = _packed_blocks(stored)
            return ("q8h", Scaling(torch.int8)) if blocks is None else (kind_of(blocks), scaling_of(blocks))
        case FP4Format(kind=kind):
            return kind, Scaling()
        case Int4Format(symmetric=symmetric, group=group, scales=scales):
            return "q4z", Scaling(getattr(torch, scales), group, zeros=not symmetric)
        case GroupedInt8Format(symmetric=symmetric, group=group, scales=scales):
            return "q8" if symmetric else "q8z", Scaling(getattr(torch, scales), group, zeros=not symmetric)
        case _:
            return "q8", Scaling(torch.float32, 0)


def _packed_blocks(kind: str) -> Stored | None:
    """The GGUF type as the kernels pack it; None for types that are read as codes first."""
    return next((name for name in PACKED_BLOCKS if name == kind), None)


def pack_blocks_(weight: PackedWeight, first: int, blocks: torch.Tensor, kind: str) -> None:
    """Pack rows of blocks of a GGUF type, uint8 [n, bytes of a row], at outputs [first, first + n).

    Raises:
        ValueError: blocks that do not fit.
    """
    if (stored := _packed_blocks(kind)) is not None:
        pack_gguf_(weight, first, blocks, stored)
        return
    inputs = weight.shape[1]
    each, rest = divmod(inputs, SPAN)
    if rest or blocks.dim() != 2 or blocks.shape[1] != each * block_bytes(kind):
        raise ValueError(f"{kind} blocks {tuple(blocks.shape)} do not fit a weight {weight.shape}")
    rows = max(1, _PIECE // inputs)
    for start in range(0, len(blocks), rows):
        piece = blocks[start : start + rows]
        read, count = read_codes(piece.reshape(len(piece) * each, -1), kind), len(piece)
        codes = (read.codes.view(torch.uint8) ^ 0x80).view(count, inputs)
        scales = read.scales.float().view(count, -1, BLOCK // GROUP)
        pack_codes_(weight, first + start, codes, scales, spans=read.factors.view(count, each, 1))


def gather_packed(
    weights: WeightMap,
    part: str,
    weight: PackedWeight,
    first: int,
    outputs: int,
    format: Format | None,
    chosen: Format | None,
) -> None:
    """Register the tensors that fill outputs [first, first + outputs) of ``weight``.

    ``format`` is that of the checkpoint, ``chosen`` the one multiplied as stored; None: a weight that is plain or made
    plain. Raises :class:`.weights.WeightError` for a format of experts alone.
    """
    shape = (outputs, weight.shape[1])
    stored_format = _stored_format(part, format, chosen)

    def place(stored: dict[str, torch.Tensor]) -> None:
        _pack(weight, first, part, stored, shape, stored_format, chosen)

    if isinstance(chosen, GGUFFormat):
        weights.ask_raw(f"{part}.weight")
    needed, ignored = (("weight",), ()) if stored_format is None else endings(stored_format)
    weights.gather(part, needed, place, nbytes=weight.nbytes * outputs // weight.shape[0], ignored=ignored)


def _stored_format(part: str, format: Format | None, chosen: Format | None) -> PartFormat | None:
    """The format that says which tensors hold the part; None: one tensor, plain or in GGUF's blocks."""
    match chosen:
        case GGUFFormat() | OnlineFormat():
            return None
        case Int8Format() | Int4Format() | GroupedInt8Format():
            return chosen
        case FP4Format(packing="compressed-tensors" | "modelopt" | "deepseek"):
            return chosen
    match format:
        case None | GGUFFormat() | OnlineFormat():
            return None
        case FP4Format(packing="gpt-oss"):
            raise WeightError(f"{part} is stored in {format.name}, which is read of experts alone")
        case _:
            return format


def _pack(
    weight: PackedWeight,
    first: int,
    part: str,
    stored: dict[str, torch.Tensor],
    shape: tuple[int, int],
    stored_format: PartFormat | None,
    chosen: Format | None,
) -> None:
    """Pack a part's tensors, which are in ``stored_format``; raises :class:`.weights.WeightError`."""
    match chosen:
        case GGUFFormat(kind=kind):
            try:
                pack_blocks_(weight, first, stored["weight"], kind)
            except ValueError as error:
                raise WeightError(f"{part}.weight: {error}") from error
        case OnlineFormat():
            quantize_(weight, first, _plain(part, stored, shape))
        case Int8Format():
            _pack_int8(weight, first, *read_scaled(chosen, stored, *shape))
        case Int4Format():
            _pack_int4(weight, first, pack_int4(chosen, stored, *shape))
        case GroupedInt8Format():
            read = read_grouped(chosen, stored, *shape)
            pack_codes_(weight, first, read.codes, read.scales.unsqueeze(2), zeros=read.zeros)
        case FP4Format() if stored_format is chosen:
            pack_fp4(weight, first, read_fp4(chosen, stored, *shape))
        case _ if stored_format is None:
            pack_plain_(weight, first, _plain(part, stored, shape))
        case _:
            pack_plain_(weight, first, expand(stored_format, stored, *shape, torch.float32))


def _plain(part: str, stored: dict[str, torch.Tensor], shape: tuple[int, int]) -> torch.Tensor:
    """The stored weight, which must be plain and of this shape."""
    check_plain(f"{part}.weight", stored["weight"])
    check_shape(f"{part}.weight", stored["weight"], shape)
    return stored["weight"]


def quantize_(weight: PackedWeight, first: int, values: torch.Tensor) -> None:
    """Pack plain values [n, K] as int8 at outputs [first, first + n)."""
    _pack_int8(weight, first, *quantize_weight_int8(values))


def _pack_int8(weight: PackedWeight, first: int, values: torch.Tensor, scale: torch.Tensor) -> None:
    """Pack int8 [n, K] with a scale for each output."""
    pack_codes_(weight, first, values.view(torch.uint8) ^ 0x80, scale.float().reshape(-1, 1, 1))


def pack_fp4(weight: PackedWeight, first: int, stored: FP4Weight) -> None:
    """Pack a matrix at outputs [first, ...). Its last block may be half a block."""
    outputs, groups = stored.scales.shape
    parts = PARTS[weight.kind]
    scales = torch.nn.functional.pad(stored.scales, (0, -groups % parts)).view(outputs, -1, parts)
    factors = None if weight.factors is None else stored.factor.expand(outputs)
    pack_codes_(weight, first, stored.codes, scales, factors)


def _pack_int4(weight: PackedWeight, first: int, stored: W4Weight) -> None:
    scales, zeros = stored.groups
    codes = unpack_codes(stored.codes, stored.shape[1])
    pack_codes_(weight, first, codes, scales.float().unsqueeze(2), zeros=None if weight.zeros is None else zeros)
