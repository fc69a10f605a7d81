"""Decodes GGUF's block formats to floats, as defined by llama.cpp's ggml.

Every function takes blocks of one type as bytes, uint8 [blocks, bytes per block], and returns float32 [blocks, elements
per block]. Halves are little-endian float16. ``d`` is a block's scale and ``m`` its minimum; products are rounded in
ggml's order, so that values are bitwise equal to ggml's.
"""

from collections.abc import Callable

import torch

from stentor.kernels import tables

from ...quantization.gguf_codes import CODED_BLOCKS, read_codes
from .types import READABLE, GGMLType


def dequantize(rows: torch.Tensor, kind: GGMLType) -> torch.Tensor:
    """Decode whole rows of stored bytes, uint8 [rows, bytes] contiguous, to float32 [rows, elements].

    Allocates a few times the float32 result: callers pass big tensors in pieces. Raises
    ``ValueError`` for a type that cannot be decoded.
    """
    if kind not in READABLE:
        raise ValueError(
            f"{kind.name} cannot be decoded, expected one of {', '.join(t.name for t in sorted(READABLE))}"
        )
    if kind in _FLOATS:
        return rows.view(_FLOATS[kind]).float()
    blocks = rows.reshape(-1, kind.block_bytes)
    values = read_codes(blocks, kind.name).values() if kind.name in CODED_BLOCKS else _DECODERS[kind](blocks)
    return values.reshape(rows.shape[0], -1)


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte ``start`` of every block, float32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] → low nibbles, then high ones, uint8 [..., 2n]."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=-1)


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, n] → every bit, lowest first, uint8 [blocks, 8n]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks, 0)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 6:]) | (_bits(blocks[:, 2:6]) << 4)
    return (quants.float() - 16) * _half(blocks, 0)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 8:]) | (_bits(blocks[:, 4:8]) << 4)
    return quants.float() * _half(blocks, 0) + _half(blocks, 2)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return torch.tensor(tables.IQ4_NL)[_nibbles(blocks[:, 2:]).int()] * _half(blocks, 0)


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    # 255 is NaN in the specification, and 2^128 in ggml, of which half is a float
    bits = blocks[:, :1].int() - 1
    half = torch.where(bits < 1, torch.where(bits < 0, 2.0**-128, 2.0**-127), (bits << 23).view(torch.float32))
    doubled = 2 * torch.tensor(tables.E2M1)
    return doubled[_nibbles(blocks[:, 1:]).int()] * half


def _six_bit_scales(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [blocks, 12] → the scales and minima of eight sub-blocks, float32 [blocks, 8, 1] each.

    The first four bytes hold four scales, the next four their minima, in six bits each; the top two
    bits of those eight bytes complete the other four scales and minima, whose low nibbles fill the rest.
    """
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 0x3F, (rest & 0x0F) | ((first >> 2) & 0x30)), dim=1)
    minima = torch.cat((second & 0x3F, (rest >> 4) | ((second >> 2) & 0x30)), dim=1)
    return scales.float().unsqueeze(-1), minima.float().unsqueeze(-1)


def _k_blocks(blocks: torch.Tensor, quants: torch.Tensor) -> torch.Tensor:
    """Apply scales and minima to the quants, uint8 [blocks, 8, 32], of Q4_K and Q5_K."""
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    d = _half(blocks, 0).unsqueeze(-1) * scales
    m = _half(blocks, 2).unsqueeze(-1) * minima
    return (d * quants.float() - m).flatten(1)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = (blocks[:, :16] & 0x0F).float(), (blocks[:, :16] >> 4).float()
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).view(1, 1, 4, 1)
    quants = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> shifts) & 3
    d, m = _half(blocks, 80) * scales, _half(blocks, 82) * minima  # [blocks, 16]
    return (d.unsqueeze(-1) * quants.reshape(-1, 16, 16).float() - m.unsqueeze(-1)).flatten(1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32))  # [blocks, 4, 64]
    return _k_blocks(blocks, quants.reshape(-1, 8, 32))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit i of the 32 high bytes belongs to sub-block i.
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    return _k_blocks(blocks, low | (high << 4))


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).view(1, 1, 4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)
    quants = (low | (high << 4)).float() - 32
    scales = blocks[:, 192:208].view(torch.int8).float()
    d = _half(blocks, 208) * scales  # [blocks, 16]
    return (d.unsqueeze(-1) * quants.reshape(-1, 16, 16)).flatten(1)


_FLOATS = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}

_DECODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.MXFP4: _mxfp4,
}
