"""GGUF blocks unpacked into aligned planes, without loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..linear_w4.planes import (
    BLOCK,
    SUPER,
    Planes,
    blocks_of,
    pack_codes,
    pack_factors,
    pack_groups,
    pack_pairs,
    padded_groups,
    unpack_codes,
    unpack_factors,
    unpack_pairs,
)

Kind = Literal["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q5_0", "Q5_1", "Q5_K"]


class _Format(NamedTuple):
    columns: int
    """Columns per block."""
    nbytes: int
    """Bytes per block."""
    bits: Literal[4, 6, 8]
    group: int
    offset: int


FORMATS: dict[Kind, _Format] = {
    "Q4_0": _Format(32, 18, 4, 32, 8),
    "Q4_1": _Format(32, 20, 4, 32, 0),
    "Q8_0": _Format(32, 34, 8, 32, 0),
    "Q4_K": _Format(256, 144, 4, 32, 0),
    "Q6_K": _Format(256, 210, 6, 16, 32),
    "Q5_0": _Format(32, 22, 6, 32, 32),
    "Q5_1": _Format(32, 24, 6, 32, 32),
    "Q5_K": _Format(256, 176, 6, 32, 32),
}
"""The ggml types that :class:`GGUFWeight` takes."""


@dataclass(frozen=True)
class GGUFWeight:
    """A weight [N, K] of one ggml type. Planes have N in dim 1; groups are padded to whole blocks of 128 columns.

    ==== ===== ========== ================================================
    type group   value
    ==== ===== ========== ================================================
    Q4_0 32    scale · (code - 8)
    Q4_1 32    scale · code + min
    Q8_0 32    scale · code
    Q4_K 32    (scale · sub_scale) · code - min · sub_min
    Q6_K 16    (scale · sub_scale) · (code - 32)
    Q5_0 32    scale · (code - 32)
    Q5_1 32    scale · (code - 32) + min
    Q5_K 32    (scale · sub_scale) · (code - 32) - min · sub_min
    ==== ===== ========== ================================================

    Codes of five bits are kept as six, which the kernels read: those of Q5_0 from 16 on, of the others from 32 on.
    """

    kind: Kind
    shape: tuple[int, int]
    """(N, K)"""
    codes: Tensor
    """int16 [ceil(K / 128), N, 32], the low four bits; for Q8_0 int8 [ceil(K / 128), N, 128]."""
    scales: Tensor
    """float16 [groups, N]; for Q4_K, Q5_K and Q6_K [ceil(K / 256), N]."""
    mins: Tensor | None = None
    """float16, the shape of ``scales``; for Q4_1, Q5_1, Q4_K and Q5_K."""
    sub_scales: Tensor | None = None
    """[ceil(K / 128), N, 128 / group] (:func:`.pack_factors`): uint8 for Q4_K and Q5_K, int8 for Q6_K."""
    sub_mins: Tensor | None = None
    """uint8, likewise, for Q4_K and Q5_K."""
    high: Tensor | None = None
    """uint8 [ceil(K / 128), N, 32], the upper two bits of six-bit codes."""

    @classmethod
    def from_blocks(cls, blocks: Tensor, kind: Kind) -> "GGUFWeight":
        """Unpacks rows of blocks.

        Args:
            blocks: uint8 [N, bytes of a row], as in the file, on any device.
            kind: their ggml type.

        Raises:
            ValueError: another type, or rows that are not whole blocks.
        """
        if kind not in FORMATS:
            raise ValueError(f"GGUF weights of {kind} cannot be multiplied by, expected one of {', '.join(FORMATS)}")
        form = FORMATS[kind]
        if blocks.dim() != 2 or blocks.dtype != torch.uint8 or blocks.shape[1] % form.nbytes:
            raise ValueError(
                f"GGUF weights: {tuple(blocks.shape)} {blocks.dtype} are not rows of {kind}'s blocks "
                f"of {form.nbytes} bytes"
            )
        rows, columns = blocks.shape[0], blocks.shape[1] // form.nbytes * form.columns
        return _READERS[kind](cls, blocks.reshape(rows, -1, form.nbytes), (rows, columns))

    @classmethod
    def concat(cls, weights: Sequence["GGUFWeight"]) -> "GGUFWeight":
        """Concatenates the rows of projections of one input.

        Raises:
            ValueError: they differ in type or in K.
        """
        first = weights[0]
        for other in weights[1:]:
            if (other.kind, other.shape[1]) != (first.kind, first.shape[1]):
                raise ValueError(
                    f"GGUF weights {first.kind} of {first.shape[1]} columns and {other.kind} of {other.shape[1]} "
                    "cannot be one layer; keep these projections apart"
                )
        rows = sum(weight.shape[0] for weight in weights)
        planes: dict[str, Any] = {
            name: torch.cat([getattr(weight, name) for weight in weights], dim=1) for name in first.present
        }
        return replace(first, shape=(rows, first.shape[1]), **planes)

    def to(self, device: torch.device | str) -> "GGUFWeight":
        """Returns the weight on ``device``."""
        return replace(self, **{name: getattr(self, name).to(device) for name in self.present})

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the planes that this type has."""
        return tuple(field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.present)

    @property
    def planes(self) -> Planes:
        """The planes that the kernels take."""
        form = FORMATS[self.kind]
        return Planes(
            label=self.kind.lower(),
            bits=form.bits,
            group=form.group,
            offset=form.offset,
            codes=self.codes,
            scales=self.scales,
            shape=self.shape,
            high=self.high,
            sub_scales=self.sub_scales,
            mins=self.mins,
            sub_mins=self.sub_mins,
        )


def dequantize(weight: GGUFWeight, dtype: torch.dtype) -> Tensor:
    """Returns [N, K]: ggml's float32 values, rounded in its order, and then to ``dtype``."""
    rows, columns = weight.shape
    form = FORMATS[weight.kind]
    groups = columns // form.group
    if weight.kind == "Q8_0":
        codes = weight.codes.transpose(0, 1).flatten(1)[:, :columns].float()
    else:
        whole = unpack_codes(weight.codes, columns)
        if weight.high is not None:
            whole = whole | (unpack_pairs(weight.high, columns) << 4)
        codes = whole.float() - form.offset

    def factor(plane: Tensor, sub: Tensor | None) -> Tensor:
        wide = plane.T.float()  # [N, groups or super groups]
        if sub is not None:
            wide = wide.repeat_interleave(SUPER // form.group, dim=1)[:, :groups]
            wide = wide * unpack_factors(sub, columns, form.group).float()
        return wide[:, :groups].unsqueeze(-1)

    values = factor(weight.scales, weight.sub_scales) * codes.reshape(rows, groups, form.group)
    if weight.mins is not None:
        low = factor(weight.mins, weight.sub_mins)
        values = values + low if weight.sub_mins is None else values - low
    return values.reshape(rows, columns).to(dtype)


def empty_weight(rows: int, columns: int, kind: Kind, device: torch.device | str) -> GGUFWeight:
    """Returns a weight of arbitrary contents, for shapes without a checkpoint."""
    form = FORMATS[kind]
    groups, blocks, super_scales = padded_groups(columns, form.group), blocks_of(columns), kind.endswith("K")
    width, codes = (BLOCK, torch.int8) if kind == "Q8_0" else (BLOCK // 4, torch.int16)

    def plane(count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, rows, dtype=dtype, device=device)

    def factors(dtype: torch.dtype) -> Tensor:
        return torch.empty(blocks, rows, BLOCK // form.group, dtype=dtype, device=device)

    mins, sub_mins = kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"), kind in ("Q4_K", "Q5_K")
    wide = -(-columns // SUPER) if super_scales else groups
    return GGUFWeight(
        kind,
        (rows, columns),
        codes=torch.empty(blocks, rows, width, dtype=codes, device=device),
        scales=plane(wide, torch.float16),
        mins=plane(wide, torch.float16) if mins else None,
        sub_scales=factors(torch.uint8 if sub_mins else torch.int8) if super_scales else None,
        sub_mins=factors(torch.uint8) if sub_mins else None,
        high=torch.empty(blocks, rows, BLOCK // 4, dtype=torch.uint8, device=device) if form.bits == 6 else None,
    )


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Returns the little-endian float16 at byte ``start`` of every block: [N, blocks of a row]."""
    return blocks[:, :, start : start + 2].contiguous().view(torch.float16).squeeze(-1)


def _nibbles(packed: Tensor) -> Tensor:
    """Unpacks uint8 [..., n] → the low nibbles, then the high ones, uint8 [..., 2n]."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _super_plane(rows: Tensor) -> Tensor:
    """Transposes [N, K / 256] → [K / 256, N]."""
    return rows.T.contiguous()


def _read_q4_0(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    codes = pack_codes(_nibbles(blocks[:, :, 2:]).flatten(1))
    return cls("Q4_0", shape, codes, pack_groups(_halves(blocks, 0), shape[1], 32))


def _read_q4_1(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    codes = pack_codes(_nibbles(blocks[:, :, 4:]).flatten(1))
    scales, mins = (pack_groups(_halves(blocks, start), shape[1], 32) for start in (0, 2))
    return cls("Q4_1", shape, codes, scales, mins)


def _read_q8_0(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    rows, columns = shape
    codes = blocks[:, :, 2:].contiguous().view(torch.int8).flatten(1)
    codes = torch.nn.functional.pad(codes, (0, blocks_of(columns) * BLOCK - columns)).view(rows, -1, BLOCK)
    return cls("Q8_0", shape, codes.transpose(0, 1).contiguous(), pack_groups(_halves(blocks, 0), columns, 32))


def _read_q5_0(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    codes, high = _six_bits(_nibbles(blocks[:, :, 6:]), _bits(blocks[:, :, 2:6]), 16)
    return cls("Q5_0", shape, codes, pack_groups(_halves(blocks, 0), shape[1], 32), high=high)


def _read_q5_1(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    codes, high = _six_bits(_nibbles(blocks[:, :, 8:]), _bits(blocks[:, :, 4:8]), 32)
    scales, mins = (pack_groups(_halves(blocks, start), shape[1], 32) for start in (0, 2))
    return cls("Q5_1", shape, codes, scales, mins, high=high)


def _bits(packed: Tensor) -> Tensor:
    """Unpacks uint8 [..., n] → their bits, the lowest first, uint8 [..., 8n]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & 1).flatten(-2)


def _six_bits(low: Tensor, fifth: Tensor, added: int) -> tuple[Tensor, Tensor]:
    """Returns five-bit codes, whose parts are [N, blocks, columns of a block], as planes of four and of two bits."""
    codes = ((low | (fifth << 4)) + added).flatten(1)
    return pack_codes(codes & 15), pack_pairs(codes >> 4)


def _read_q4_k(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    return cls(
        "Q4_K", shape, codes=pack_codes(_nibbles(blocks[:, :, 16:].unflatten(-1, (4, 32))).flatten(1)), **_k(blocks)
    )


def _read_q5_k(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    # bit i of the 32 bytes between scales and nibbles belongs to the i-th 32 columns
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device).view(8, 1)
    fifth = ((blocks[:, :, 16:48].unsqueeze(2) >> shifts) & 1).flatten(2)
    codes, high = _six_bits(_nibbles(blocks[:, :, 48:].unflatten(-1, (4, 32))).flatten(2), fifth, 32)
    return cls("Q5_K", shape, codes=codes, high=high, **_k(blocks))


def _k(blocks: Tensor) -> dict[str, Tensor]:
    """Returns the scales and minima of Q4_K and Q5_K."""
    columns = blocks.shape[1] * SUPER
    # 12 bytes hold eight scales and eight minima of six bits. The low six bits of the first eight bytes hold four of
    # each. The upper two bits of those bytes and the nibbles of the last four bytes make up the other four of each.
    first, second, rest = blocks[:, :, 4:8], blocks[:, :, 8:12], blocks[:, :, 12:16]
    sub_scales = torch.cat((first & 0x3F, (rest & 15) | ((first >> 2) & 0x30)), dim=-1).flatten(1)
    sub_mins = torch.cat((second & 0x3F, (rest >> 4) | ((second >> 2) & 0x30)), dim=-1).flatten(1)
    return {
        "scales": _super_plane(_halves(blocks, 0)),
        "mins": _super_plane(_halves(blocks, 2)),
        "sub_scales": pack_factors(sub_scales, columns, 32),
        "sub_mins": pack_factors(sub_mins, columns, 32),
    }


def _read_q6_k(cls: type[GGUFWeight], blocks: Tensor, shape: tuple[int, int]) -> GGUFWeight:
    # Each half of a block has 64 bytes of low nibbles, and 32 bytes whose bits 2i and 2i + 1 belong to its i-th 32
    # columns.
    low = _nibbles(blocks[:, :, :128].unflatten(-1, (2, 64))).flatten(1)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device).view(1, 1, 1, 4, 1)
    high = ((blocks[:, :, 128:192].unflatten(-1, (2, 1, 32)) >> shifts) & 3).flatten(1)
    sub_scales = blocks[:, :, 192:208].contiguous().view(torch.int8).flatten(1)
    return cls(
        "Q6_K",
        shape,
        codes=pack_codes(low),
        scales=_super_plane(_halves(blocks, 208)),
        sub_scales=pack_factors(sub_scales, shape[1], 16),
        high=pack_pairs(high),
    )


_READERS: dict[Kind, Callable[[type[GGUFWeight], Tensor, tuple[int, int]], GGUFWeight]] = {
    "Q4_0": _read_q4_0,
    "Q4_1": _read_q4_1,
    "Q8_0": _read_q8_0,
    "Q4_K": _read_q4_k,
    "Q6_K": _read_q6_k,
    "Q5_0": _read_q5_0,
    "Q5_1": _read_q5_1,
    "Q5_K": _read_q5_k,
}
