"""Heads of a fused projection, tables of angles and caches, as the tests of rotary and of the KV cache take them."""

import torch
from torch import Tensor

from stentor.kernels.kv_cache import make_kv_cache
from stentor.tests.kernels.helpers import assert_close, normal

FP8 = torch.float8_e4m3fn
TRITON_TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of norms, whose sums have another order; everything else is bitwise that of the reference."""


def projection(
    tokens: int, q_heads: int, kv_heads: int, dim: int, *, seed: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [tokens, heads, dim]: slices of one tensor, whose rows are longer than they need be."""
    fused = normal(tokens, (q_heads + 2 * kv_heads) * dim + 16, seed=seed, dtype=dtype).to(device)
    q, k, v, _ = fused.split([q_heads * dim, kv_heads * dim, kv_heads * dim, 16], dim=1)
    return q.view(tokens, q_heads, dim), k.view(tokens, kv_heads, dim), v.view(tokens, kv_heads, dim)


def rotary_table(positions: int, half: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(positions).double(), 10000.0 ** (-torch.arange(half).double() / half))
    return angles.cos().float().to(device), angles.sin().float().to(device)


def draw(count: int, tokens: int, seed: int, device: str = "cpu") -> Tensor:
    """Distinct numbers below ``count``, int64 [tokens]."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:tokens].to(device)


def filled_caches(
    blocks: int, heads: int, dim: int, size: int, dtype: torch.dtype, *, transposed: bool, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """A pair of caches that holds 7 everywhere, so that a stray write shows."""
    k_cache, v_cache = make_kv_cache(blocks, heads, dim, size, dtype, device, keys_transposed=transposed)
    for cache in (k_cache, v_cache):
        cache.copy_(torch.full(cache.shape, 7.0).to(dtype))
    return k_cache, v_cache


def assert_same_cache(actual: Tensor, expected: Tensor) -> None:
    """Bitwise, but for zeros of either sign."""
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.float().nan_to_num(1e9), expected.float().nan_to_num(1e9))


def assert_close_cache(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Caches are close; in float8 nearly all numbers are the same, the others neighbours."""
    if expected.dtype != FP8:
        assert_close(actual.contiguous(), expected.contiguous(), tolerance)
        return
    a, b = actual.float(), expected.float()
    assert ((a - b).abs() <= b.abs() / 8 + 2**-9).all()
    assert (a != b).float().mean() < 0.01
