"""cache[block, head, …, offset] = row, where slot = block · block_size + offset.

float8 stores clamp(row / scale, ±448). int8 stores round(row / scale), where scale[block, head, offset] = max|row| /
127.
"""

from torch import Tensor

from .layout import FP8_MAX, INT8, INT8_MAX


def write_kv_(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    size = k_cache.shape[3]
    total = k_cache.shape[0] * size
    outside = slots[slots >= total]
    if outside.numel():
        raise IndexError(f"write_kv_: slot {int(outside[0])} lies outside the {total} slots of the cache")
    kept = slots >= 0
    block, offset = slots[kept] // size, slots[kept] % size
    k, v = k[kept], v[kept]
    if k_cache.dtype == INT8:
        assert k_scale is not None
        assert v_scale is not None
        k_scale[block, :, offset] = row_scale(k)
        v_scale[block, :, offset] = row_scale(v)
        k_cache[block, :, :, offset] = _codes(k)
        v_cache[block, :, offset, :] = _codes(v)
        return
    k_cache[block, :, :, offset] = _stored(k, k_scale, k_cache)
    v_cache[block, :, offset, :] = _stored(v, v_scale, v_cache)


def row_scale(rows: Tensor) -> Tensor:
    """Returns the scales of int8 codes: [T, Hkv, D] → [T, Hkv] float32."""
    return rows.float().abs().amax(-1) / INT8_MAX


def _codes(rows: Tensor) -> Tensor:
    scale = row_scale(rows).unsqueeze(-1)
    return (rows.float() / scale.where(scale != 0, 1.0)).clamp(-INT8_MAX, INT8_MAX).round().to(INT8)


def _stored(rows: Tensor, scale: Tensor | None, cache: Tensor) -> Tensor:
    if scale is None:
        return rows
    return (rows.float() / scale[:, None]).clamp(-FP8_MAX, FP8_MAX).to(cache.dtype)
