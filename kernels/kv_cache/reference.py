"""cache[block, head, …, offset] = row, where slot = block · block_size + offset; float8: clamp(row / scale, ±448)"""

from torch import Tensor

from .layout import FP8_MAX


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
    k_cache[block, :, :, offset] = _stored(k[kept], k_scale, k_cache)
    v_cache[block, :, offset, :] = _stored(v[kept], v_scale, v_cache)


def _stored(rows: Tensor, scale: Tensor | None, cache: Tensor) -> Tensor:
    if scale is None:
        return rows
    return (rows.float() / scale[:, None]).clamp(-FP8_MAX, FP8_MAX).to(cache.dtype)
