"""cache[block, head, …, offset] = row, where slot = block · block_size + offset"""

from torch import Tensor


def write_kv_(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    size = k_cache.shape[3]
    total = k_cache.shape[0] * size
    outside = slots[(slots < 0) | (slots >= total)]
    if outside.numel():
        raise IndexError(f"write_kv_: slot {int(outside[0])} lies outside the {total} slots of the cache")
    block, offset = slots // size, slots % size
    k_cache[block, :, :, offset] = k
    v_cache[block, :, offset, :] = v
