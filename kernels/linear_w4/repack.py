"""Repacks checkpoints' 4-bit tensors as :class:`.W4Weight`: the same codes, zeros and scales in another order."""

import torch
from torch import Tensor

from .weight import W4Weight

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of an AWQ word is column ``AWQ_ORDER[i]`` of the word's eight."""


def from_gptq(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    *,
    group: int,
    g_idx: Tensor | None = None,
    version: int = 1,
) -> W4Weight:
    """Repacks four-bit GPTQ (arXiv:2210.17323, as AutoGPTQ and GPTQModel write it).

    Args:
        qweight: int32 [K / 8, N], rows 8i … 8i + 7 from the lowest nibble up.
        qzeros: int32 [groups, N / 8], columns from the lowest nibble up.
        scales: float [groups, N].
        group: columns of a group; -1 for one per row.
        g_idx: the group of each input, int32 [K] (``desc_act``).
        version: 1 for the ``checkpoint_format`` ``gptq``, which stores zeros less one; 2 for ``gptq_v2``.

    Raises:
        ValueError: shapes that do not fit, or another version.
    """
    if version not in (1, 2):
        raise ValueError(f"GPTQ checkpoints are of version 1 or 2, not {version}")
    codes = _nibbles(qweight.T)  # [N, K]
    zeros = _nibbles(qzeros).T[: codes.shape[0]] + (1 if version == 1 else 0)
    return W4Weight.from_codes(codes, scales.T, group=group, zeros=zeros, g_idx=g_idx)


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, *, group: int) -> W4Weight:
    """Repacks AWQ, the GEMM version (arXiv:2306.00978).

    Args:
        qweight: int32 [K, N / 8], columns in :data:`AWQ_ORDER`.
        qzeros: int32 [groups, N / 8], likewise.
        scales: float [groups, N].
        group: columns of a group; -1 for one per row.

    Raises:
        ValueError: shapes that do not fit.
    """
    return W4Weight.from_codes(_awq(qweight).T, scales.T, group=group, zeros=_awq(qzeros).T)


def from_compressed_tensors(
    weight_packed: Tensor,
    weight_scale: Tensor,
    *,
    shape: tuple[int, int],
    group: int,
    weight_zero_point: Tensor | None = None,
    weight_g_idx: Tensor | None = None,
) -> W4Weight:
    """Repacks compressed-tensors' four-bit ``pack-quantized``: integers -8…7 stored plus 8.

    Args:
        weight_packed: int32 [N, ceil(K / 8)], columns from the lowest nibble up.
        weight_scale: float [N, groups].
        shape: ``weight_shape``, (N, K).
        group: columns of a group; -1 for the strategy ``channel``.
        weight_zero_point: int32 [ceil(N / 8), groups], rows from the lowest nibble up, also plus 8; None if symmetric.
        weight_g_idx: the group of each column, integers [K]; a negative first one means that there is none.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, columns = shape
    codes = _nibbles(weight_packed)[:, :columns]
    if codes.shape != (rows, columns):
        raise ValueError(f"weight_packed is {tuple(weight_packed.shape)}, too small for a weight of {shape}")
    zeros = None if weight_zero_point is None else _nibbles(weight_zero_point.T)[:, :rows].T
    if weight_g_idx is not None and int(weight_g_idx[0]) < 0:
        weight_g_idx = None
    return W4Weight.from_codes(codes, weight_scale, group=group, zeros=zeros, g_idx=weight_g_idx)


def _nibbles(words: Tensor) -> Tensor:
    """Unpacks int32 [rows, n] → the eight nibbles of each word, lowest first, uint8 [rows, 8n]."""
    data = words.contiguous().view(torch.uint8)  # little-endian
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(1)


def _awq(words: Tensor) -> Tensor:
    """Unpacks int32 [rows, n] → uint8 [rows, 8n] in the order of columns."""
    nibbles = _nibbles(words).view(words.shape[0], -1, 8)
    place = [AWQ_ORDER.index(column) for column in range(8)]
    return nibbles[:, :, place].flatten(1)
