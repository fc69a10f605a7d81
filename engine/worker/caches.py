"""The KV cache: its dtype, its bytes, its tensors."""

import math
from collections.abc import Sequence

import torch

from stentor.kernels import kv_cache_shape
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.config import CacheDType

from ..layers.forward_batch import LayerCache
from ..model_config.model_spec import CacheGroup
from .errors import SetupError

FP8 = torch.float8_e4m3fn
_FP8_CAPABILITY = (8, 9)


def choose_cache_dtype(wanted: CacheDType, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """That of the activations, or float8 where it was asked for and the device converts it."""
    if wanted == "fp8":
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
            raise SetupError(
                "--kv-cache-dtype fp8 needs a GPU of compute capability 8.9 (Ada, Hopper) or later, this one has "
                f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}: use --kv-cache-dtype auto"
            )
        return FP8
    own = str(dtype).removeprefix("torch.")
    if wanted not in ("auto", own):
        raise SetupError(f"--kv-cache-dtype {wanted}: the model computes in {own}; use auto, {own} or fp8")
    return dtype


def kv_block_bytes(groups: Sequence[CacheGroup], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return sum(group.token_bytes(dtype.itemsize) for group in groups) * block_size


def allocate_caches(
    groups: Sequence[CacheGroup], num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> list[LayerCache]:
    """K and V of every layer of the model, zeroed."""
    of_layer = {layer: group for group in groups for layer in group.layers}
    return [_allocate(of_layer[layer], num_blocks, block_size, device, dtype) for layer in range(len(of_layer))]


def _allocate(
    group: CacheGroup, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> LayerCache:
    shape = (num_blocks, group.kv_heads, group.head_dim, block_size)
    if device.type == "cpu":
        k_shape, v_shape = kv_cache_shape(*shape)
        k, v = _untouched_zeros(k_shape, dtype), _untouched_zeros(v_shape, dtype)
    else:
        k, v = make_kv_cache(*shape, dtype, device)
    return LayerCache(k, v)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # torch.zeros writes every page; fresh pages of the kernel are zero and cost nothing until they are used
    return empty_huge(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
